"""Flower as a carrier: only its transport carries the bytes of a federation."""
