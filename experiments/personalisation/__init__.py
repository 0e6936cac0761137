"""The value of personal models for each client, with and without noise."""
