"""What lies on disk? The run directory, and what its files say of each other."""
