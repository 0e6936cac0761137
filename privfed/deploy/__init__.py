"""How does a site of its own take part? Keys, policies, receipts, and federations agreed upon."""
