"""Messages of masked sums and their serialised forms."""
