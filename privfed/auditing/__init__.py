"""Is the claim true? Ledgers accounted again, mechanisms sampled, canaries scored."""
