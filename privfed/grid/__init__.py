"""Executes grids of runs: their cells, worker processes, results, guarantees and figures."""
