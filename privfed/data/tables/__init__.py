"""Columns of a table as numbers: cells, dates, categories, and missing values."""
