"""Poisoning of data and of updates, and privacy attacks by a server or by readers of a release.

Attacks take and return tensors. This package does not import privfed.
"""
