"""Tuning a transformer over speakers: low-rank adaptation against all of it, and its head alone."""
