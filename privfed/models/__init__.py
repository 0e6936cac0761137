"""Networks as functions of one vector `[d]`: recipes, losses, and users' own modules."""
