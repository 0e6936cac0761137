"""Parses and validates run files: their sections, keys and parts."""
