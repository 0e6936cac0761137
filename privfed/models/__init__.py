"""Models as functions of one parameter vector `[d]`: recipes, losses, and users' own modules."""
