"""What do clients do? Local objectives, the trainer of many at once, and hostile clients."""
