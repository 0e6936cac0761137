"""Files on disk: keys, federations, receipts, and the state of a sum's party."""
