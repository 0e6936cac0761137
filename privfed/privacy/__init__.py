"""Clip, noise and divisor: what a row is bounded to, and what is released of a sum."""
