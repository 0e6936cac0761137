"""Canaries: synthetic clients that test a claimed epsilon within the run."""
