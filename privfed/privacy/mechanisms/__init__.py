"""Mechanisms, one file each: clip, noise, divisor, and the event that is charged."""
