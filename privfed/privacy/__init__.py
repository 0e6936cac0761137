"""Clipping, noise and divisor: bounds on rows, and the release of a noised sum."""
