"""Grids of runs: their cells, the processes that run them, their results and figures."""
