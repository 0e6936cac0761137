"""Compression of updates, before they are clipped, summed and noised."""
