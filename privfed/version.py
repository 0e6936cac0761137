"""The version of privfed, which run directories and exports state."""

__version__ = "0.1.0"
