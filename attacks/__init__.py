"""Simulated attacks: poisoning of data and of updates by Byzantine clients, and attacks on privacy
by a server or by readers of a release.

Attacks take and return tensors. This package does not import privfed.
"""
