"""What byzantine clients claim beside their rows: how many examples they hold, how long a row is.

The threat model: attackers replace every number that they send in a round that trains, in every
exchange. What limits them is what others can check. A server that sees rows bounds them, and what
it admits of a weight (`aggregation.most_examples`); under a secure sum nobody checks anything but
that the numbers fit. The count of adaptive clipping is a bit: whatever it says, its column has the
same length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privfed.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Lies:
    """What attackers claim; the default claims nothing untrue.

    `everything`: their attack replaces all that they send in training, else model updates alone.
    `weight` is how many times their examples they claim to hold, of which others admit `most`.
    `within` is what they tell adaptive clipping of their norms, None the truth.
    """

    everything: bool = True
    weight: float = 1.0
    most: float = math.inf
    within: bool | None = None

    def claimed(self, weights: Tensor, hostile: Tensor) -> Tensor:
        """The `weights` `[c]`, those of `hostile` `[c]` as these claim them and others admit."""
        lied = (weights * self.weight).clamp(max=self.most)
        return torch.where(hostile, lied, weights)
