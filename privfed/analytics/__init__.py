"""What are the columns of a federation like? One charged release over its clients says it."""
