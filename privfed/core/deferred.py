"""Import torch when an attribute of it is first used.

Parts of a run declare their properties and do the work in one class. Refusals and plans read the
declarations alone, and importing torch takes longer than they do. Modules that plans import take
torch and its types from here.
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
