"""Federated runs over real sites: keys, policies, receipts and federation files."""
