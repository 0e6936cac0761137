"""What clients do with a broadcast model: local objectives, and the trainer of many at once."""
