"""Rows of a plan's table: privacy, secure sums, and sites."""
