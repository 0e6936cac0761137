"""Columns of a table as numbers: cells, dates, categories, and what is missing."""
