"""Objectives that end in a model of each client's own, or in one that adapts to each."""
