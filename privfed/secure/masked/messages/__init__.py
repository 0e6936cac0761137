"""The messages of masked sums, and the bytes that they are."""
