"""Files on disk: keys, federations, receipts, and a site's state in the current sum."""
