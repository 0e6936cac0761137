"""Compression of updates: sums stay sums, and noise covers what is sent."""
