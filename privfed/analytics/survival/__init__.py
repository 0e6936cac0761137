"""Survival curves and tests from one noised table."""
