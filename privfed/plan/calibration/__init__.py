"""Calibration: solves for one of noise, rounds, cohort size and epsilon, given the others."""
