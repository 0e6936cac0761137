"""Rules that need only sums of what each client computes on its own row."""
