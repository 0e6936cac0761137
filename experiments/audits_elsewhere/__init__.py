"""Canaries in pipelines that are not privfed's: an example of each, and what they show."""
