"""Data: sources, partitions, and the public test set."""
