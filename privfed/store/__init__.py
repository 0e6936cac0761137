"""The run directory: its files, and checks of their consistency."""
