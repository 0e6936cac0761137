"""Executes experiments over grids of runs. A cell of a grid is one run: one value for each varied
key of the run file, and one seed.
"""
