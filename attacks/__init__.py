"""Poisoning of data and of updates, and inference from what a server or a reader sees.

Tensors and callables in, tensors out; imports no privfed.
"""
