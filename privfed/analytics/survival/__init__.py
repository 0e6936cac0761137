"""Survival curves and tests of groups, from one noised table of counts."""
