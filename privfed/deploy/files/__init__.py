"""What lies on disk: keys, who takes part, receipts, and what a party of a sum remembers."""
