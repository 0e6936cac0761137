"""A second client of masked sums, written from docs/reference/protocol.md without privfed's code.

Complete, circle and random graphs, and noise in layers, in pure Python.
"""

from second_client.client import SecondClient, Sum
from second_client.encoding import LABELS, Refusal
from second_client.graphs import Given, Settings, Shape
from second_client.noise import Layers

__all__ = ["LABELS", "Given", "Layers", "Refusal", "SecondClient", "Settings", "Shape", "Sum"]
