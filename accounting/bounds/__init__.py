"""Bounds on a single release: divergences, privacy profiles and sensitivities."""
