"""Noise: exact integers and rounded Gaussians, from bits that nobody can foresee."""
