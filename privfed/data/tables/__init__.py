"""Converts the columns of a table to numbers: cells, dates, categories, and missing values."""
