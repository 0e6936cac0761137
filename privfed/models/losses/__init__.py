"""Losses, one file each, and their shared code."""
