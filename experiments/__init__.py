"""Studies and benchmarks: what is claimed, tried, and came out."""
