"""Canaries: made-up clients that test a claimed epsilon in the run itself."""
