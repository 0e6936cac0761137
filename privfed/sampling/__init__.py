"""Client sampling: availability, samplers, and the cohorts that they draw."""
