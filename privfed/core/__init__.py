"""Shared code of all packages: parts, registry, errors, random streams, vectors and processes."""

__version__ = "0.1.0"
"""The version of privfed, which run directories and exports state."""
