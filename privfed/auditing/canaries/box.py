"""Canaries that are vectors or images: numbers within a box, each with a class of its canary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.streams import Keys, uniforms

_FIRST_STEP = 0.25
"""How far the first step goes, in widths of the box; the last one goes nowhere."""


@dataclass(frozen=True)
class Box:
    """Inputs between `low` and `high` `[*features]`, with classes below `classes`."""

    low: Tensor
    high: Tensor
    classes: int

    def drawn(self, keys: Keys, count: int) -> tuple[Tensor, Tensor]:
        """Uniform inputs x `[count, *features]`, and one class of the canary's own, y `[count]`."""
        words = keys.bits(count * self.low.numel() + 1)
        y = torch.full((count,), int(words[0] % np.uint64(self.classes)))
        part = torch.from_numpy(uniforms(words[1:])).float().view(count, *self.low.shape)
        return self.low + part * (self.high - self.low), y

    def crafted(
        self, x: Tensor, y: Tensor, influence: SelfInfluence, steps: int, keys: Sequence[Keys]
    ) -> tuple[Tensor, Tensor]:
        """Inputs after `steps` of gradient ascent on their `influence`, by signs, within the box.

        Raises whatever the model raises that cannot be differentiated twice.
        """
        low, high = self.low.to(x), self.high.to(x)
        for step in range(steps):
            leaf = x.detach().requires_grad_()
            worth = influence.of(leaf, y).sum()
            (uphill,) = torch.autograd.grad(worth, leaf)
            length = _FIRST_STEP * (1 - step / steps)
            x = torch.clamp(x + length * (high - low) * uphill.sign(), low, high)
        return x.detach(), y
