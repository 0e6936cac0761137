"""Secure summation: a total and a count, never rows."""
