"""Secure sums: protocols that reveal the total of clients' rows and their number, but no row."""
