"""Empirical tests of a claimed epsilon, by guesses and samples."""
