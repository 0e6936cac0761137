"""Noise samplers: exact integers and rounded Gaussians, from unpredictable random bits."""
