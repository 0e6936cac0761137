"""Networks as functions of one vector `[d]`: recipes, losses, and how a user's own is taken."""
