"""Who has which examples? Sources, partitions, and the public test set."""
