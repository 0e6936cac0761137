"""One round: its charge, exchanges, sums, releases, and server step."""
