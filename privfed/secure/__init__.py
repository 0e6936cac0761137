"""Secure sums: protocols that give their caller a total and a count, and hide each client's row."""
