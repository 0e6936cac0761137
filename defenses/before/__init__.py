"""What may go before a rule: mixtures of rows, which the rule aggregates in their stead."""
