"""Low-rank adaptation: what of a weight's change is trained, drawn, and merged again."""
