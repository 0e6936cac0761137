"""An attacker that knows the rule, and tries on it what harms most."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import FullKnowledge, Knowledge, View


class Adaptive(FullKnowledge):
    """Of several directions and strengths, the row that moves the rule farthest from the honest.

    mu + gamma p, p along -mu, -sign(mu) or -sigma, of the length of the honest deviation, and
    gamma from a geometric grid of `steps` values between 2^-4 and 2^8, then refined `steps` times
    around the best by halving the ratio; the one that maximises |F - mu| on the honest rows.

    Knows all honest updates and the rule, which it runs on them. Source: Shejwalkar & Houmansadr
    2021, section IV-A (rule-tailored attacks); Allouah et al. 2023, section 6 (line searches).

    >>> import torch, numpy
    >>> honest = torch.tensor([[1.0], [2.0], [3.0]])
    >>> view = View(1, torch.zeros(1, 1), honest, lambda rows: rows.median(0).values)
    >>> Adaptive().corrupt(view, {}, numpy.random.default_rng(0))[0] < 1.0
    tensor([[True]])
    """

    knows: ClassVar[frozenset[Knowledge]] = FullKnowledge.knows | {Knowledge.RULE}
    steps: int = Field(9, ge=2, le=100)
    """How many strengths are tried, and how often the best is refined."""

    def hostile(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
        mean, spread = honest.mean(0), honest.std(0, correction=0)
        length = spread.norm()
        rule = view.rule
        if rule is None or not float(length) > 0.0:
            return -mean
        directions = [p * (length / p.norm()) for p in (-mean, -mean.sign(), -spread) if p.any()]

        def harm(p: Tensor, strength: float) -> float:
            hostile = (mean + strength * p).expand_as(view.byzantine)
            return float((rule(torch.cat([hostile, honest])) - mean).norm())

        grid = np.geomspace(2.0**-4, 2.0**8, self.steps)
        tried = [(harm(p, g), i, g) for i, p in enumerate(directions) for g in grid.tolist()]
        best, place, strength = max(tried)
        ratio = float(grid[1] / grid[0])
        for _ in range(self.steps):
            ratio **= 0.5
            for near in (strength * ratio, strength / ratio):
                harmed = harm(directions[place], near)
                if harmed > best:
                    best, strength = harmed, near
        row: Tensor = mean + strength * directions[place]
        return row
