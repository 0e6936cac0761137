"""torch, and what of it is usually named, imported when something of it is first used.

Parts of a run declare what they are and do the work, in one class: what may be combined and what a
budget buys are asked of the declarations alone, and importing torch takes longer than the answer.
Modules that those questions reach import it from here, and its types under `TYPE_CHECKING`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defenses.deferred import Deferred

if TYPE_CHECKING:
    import torch as torch
    from torch import nn as nn
    from torch.nn import functional as F
else:
    torch, nn, F = map(Deferred, ("torch", "torch.nn", "torch.nn.functional"))

__all__ = ["F", "nn", "torch"]
