"""Tuning that is charged: of a secret, random number of runs the best alone is released."""
