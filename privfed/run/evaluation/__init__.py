"""Evaluation by clients: their rows of measures, one more release, and early stopping."""
