"""Are adaptive servers best where gradients are sparse? Reddi et al. 2021, sections 5 and 6."""
