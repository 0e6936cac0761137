"""Local objectives, each of one paper: corrections of the local gradient, loss or message."""
