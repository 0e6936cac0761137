"""Pre-aggregation: mixtures of rows that replace the rows before a rule is applied."""
