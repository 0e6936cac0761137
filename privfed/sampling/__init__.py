"""Who takes part? Availability, samplers, and the cohort that they draw."""
