"""Rules that need only sums of terms that each client computes from its own row."""
