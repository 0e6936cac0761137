"""Partitions of examples among clients, and distribution shifts between clients or rounds."""
