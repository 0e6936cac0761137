"""Mechanisms, one file each: clip, noise, divisor, and the event that says what it was."""
