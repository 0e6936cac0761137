"""A study: what canaries find of the claimed epsilon."""
