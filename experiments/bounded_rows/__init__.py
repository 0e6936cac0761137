"""A study of proofs over two servers that bound the norm of a client's row."""
