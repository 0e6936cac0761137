"""Figures of a grid's tables, checked before it runs and drawn afterwards."""
