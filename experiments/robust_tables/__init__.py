"""Published tables of robust aggregation, run again."""
