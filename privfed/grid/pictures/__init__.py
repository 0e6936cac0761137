"""Figures of a grid's results: declared in the grid file, checked before the grid runs, and drawn
from its tables.
"""
