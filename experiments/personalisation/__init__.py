"""What models of clients' own are worth to each of them, with and without noise."""
