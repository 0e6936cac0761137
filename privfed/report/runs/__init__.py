"""The tables of the runs in a folder, and of two compared runs."""
