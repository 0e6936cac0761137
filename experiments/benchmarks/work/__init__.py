"""The work that benchmarks time, who does it, and what becomes of the numbers."""
