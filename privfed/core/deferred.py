"""Imports torch, and slow modules of SciPy, when one of their attributes is first used.

A part's class contains both its declarations and its code. Refusals and plans read only the
declarations, and importing torch takes longer than reading them. Modules that plans import
therefore take torch and its types from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defenses.deferred import Deferred
from defenses.deferred import Tensor as Tensor
from defenses.deferred import optimize as optimize
from defenses.deferred import torch as torch

if TYPE_CHECKING:
    from scipy import signal as signal
    from scipy import stats as stats
    from torch import nn as nn
    from torch.nn import functional as F
else:
    nn, F = map(Deferred, ("torch.nn", "torch.nn.functional"))
    signal, stats = map(Deferred, ("scipy.signal", "scipy.stats"))

__all__ = ["F", "Tensor", "nn", "optimize", "signal", "stats", "torch"]
