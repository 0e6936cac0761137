"""Other frameworks on the same work, each run by the interpreter of its own environment."""
