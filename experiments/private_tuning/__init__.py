"""The cost of a charged choice among eight learning rates."""
