"""The names that `privfed` offers to Python programs."""
