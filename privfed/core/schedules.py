"""Schedules of learning rates: a factor for the clients' or the server's rate in each round."""

from __future__ import annotations

import math
from typing import Protocol

from pydantic import Field

from privfed.core.parts import Part


class Schedule(Protocol):
    """A learning rate over the rounds; a public constant that does not depend on the run."""

    def factor(self, round: int) -> float:
        """The factor of the learning rate in `round`, counted from 1."""


class Constant(Part):
    """The same rate in every round."""

    def factor(self, round: int) -> float:
        return 1.0


CONSTANT = Constant()


class Staircase(Part):
    """Multiplies the rate by `decay` after every `every` rounds (Reddi et al. 2021: 0.1, 500)."""

    decay: float = Field(0.1, gt=0, le=1)
    """The factor of a step."""
    every: int = Field(500, ge=1)
    """The number of rounds in a step."""

    def factor(self, round: int) -> float:
        return float(self.decay ** ((round - 1) // self.every))


class WarmUp(Part):
    """Raises the rate linearly over rounds 1 to `warmup`, then leaves it constant."""

    warmup: int = Field(10, ge=1)
    """The number of rounds over which the rate rises."""

    def factor(self, round: int) -> float:
        return min(round / self.warmup, 1.0)


class Cosine(Part):
    """Lowers the rate to zero over `over` rounds, as half a cosine (Loshchilov & Hutter 2017)."""

    over: int = Field(ge=1, examples=[10])
    """The number of rounds over which the rate falls."""

    def factor(self, round: int) -> float:
        progress = min((round - 1) / self.over, 1.0)
        return (1 + math.cos(math.pi * progress)) / 2
