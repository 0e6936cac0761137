"""Sums under homomorphic encryption: keys, parties, and their messages."""
