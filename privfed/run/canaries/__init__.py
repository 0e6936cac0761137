"""A run's canaries as its loop and its forecast know them."""
