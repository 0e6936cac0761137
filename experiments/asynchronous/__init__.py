"""Asynchronous ticks against synchronous rounds, with a tier of clients ten times slower."""
