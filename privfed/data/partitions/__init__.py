"""Partitions of examples among clients, and shifts of clients' examples."""
