"""Objectives that end in a personal model of each client, or in a model that adapts to each."""
