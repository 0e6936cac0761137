"""Declarations of a table, inferred from a public sample."""
