"""Regressions with intervals that contain the noise."""
