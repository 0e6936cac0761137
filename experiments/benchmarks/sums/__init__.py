"""Costs of secure sums, next to simpler versions of the same work."""
