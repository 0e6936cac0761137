"""The files of a run directory, and checks of their consistency."""
