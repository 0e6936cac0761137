"""Regressions from noised sums over clients, with intervals that cover sampling and noise."""
