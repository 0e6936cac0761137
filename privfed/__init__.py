"""privfed: private and robust federated learning, with an epsilon that can be proved."""

__version__ = "0.1.0"
