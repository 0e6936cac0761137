"""Poisoning of data and of updates, and privacy attacks by a server or by readers of a release.

Tensors and callables in, tensors out; imports no privfed.
"""
