"""Loads examples, assigns them to clients, and holds out the public test set."""
