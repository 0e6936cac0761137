"""Local objectives, one paper each: a drift correction added to the local gradient."""
