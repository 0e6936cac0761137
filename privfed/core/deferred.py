"""Imports torch when one of its attributes is first used.

A part's class contains both its declarations and its code. Refusals and plans read only the
declarations, and importing torch takes longer than reading them. Modules that plans import
therefore take torch and its types from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defenses.deferred import Deferred
from defenses.deferred import Tensor as Tensor
from defenses.deferred import torch as torch

if TYPE_CHECKING:
    from torch import nn as nn
    from torch.nn import functional as F
else:
    nn, F = map(Deferred, ("torch.nn", "torch.nn.functional"))

__all__ = ["F", "Tensor", "nn", "torch"]
