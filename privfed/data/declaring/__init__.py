"""Infers the declaration of a table from a public sample."""
