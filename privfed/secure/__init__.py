"""Secure sums: protocols that return a total and the number of its rows, and hide single rows."""
