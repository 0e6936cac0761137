"""Client-side training: local objectives, trainers, client states, and Byzantine clients."""
