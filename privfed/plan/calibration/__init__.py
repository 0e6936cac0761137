"""Calibration: solves for noise, rounds, cohort size or epsilon, given the other three."""
