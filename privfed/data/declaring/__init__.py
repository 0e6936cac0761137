"""Declarations of a table, read off a public sample."""
