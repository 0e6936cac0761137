"""Builds and writes the self-contained HTML page about a run or a grid of runs."""
