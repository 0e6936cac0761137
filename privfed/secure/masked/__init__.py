"""Sums under pairwise masks: client, server, and the messages between them."""
