"""Studies and benchmarks: claims, experiments and results."""
