"""Statistics of a federation's table columns, from one release that is charged to the ledger."""
