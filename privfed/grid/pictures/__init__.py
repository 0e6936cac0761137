"""Figures of a grid's tables: checked before the grid runs, and drawn afterwards."""
