"""Flower as carrier: its transport alone carries the bytes of a federation."""
