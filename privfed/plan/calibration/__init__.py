"""Calibration: solves for any one of noise, rounds, cohort or epsilon, given the others."""
