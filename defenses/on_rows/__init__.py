"""Rules that need every client's row."""
