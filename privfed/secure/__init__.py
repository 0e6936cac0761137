"""Which sums show no row? Protocols that give their caller a total and a count."""
