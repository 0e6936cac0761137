"""Other frameworks on the same work, each run by the interpreter of an environment of its own."""
