"""Client-side training: local objectives, the trainer of stacked clients, and Byzantine clients."""
