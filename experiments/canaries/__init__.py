"""A study of canaries' estimates and bounds of the claimed epsilon."""
