"""Canaries of pipelines that are not privfed's: what their released models show of a claim."""
