"""Rules that need to see every client's row."""
