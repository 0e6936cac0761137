"""What are the columns of a federation like? One charged release over its clients, and what follows from it."""
