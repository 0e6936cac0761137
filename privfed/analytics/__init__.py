"""Statistics of a federation's columns, from one charged release over its clients."""
