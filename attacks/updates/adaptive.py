"""An attacker that knows the rule, and tries on it what harms most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import FullKnowledge, Knowledge, View
from attacks.updates.candidates import directions, fixed_rows


class Adaptive(FullKnowledge):
    """Of several directions and strengths, and of what other attacks send, what harms most.

    mu + gamma p, with p along -mu, -sign(mu), -sigma or the first principal direction of honest
    updates (both ways), of the length of their deviation, and gamma from a geometric grid of
    `steps` values between 2^-4 and 2^8; and the rows that each other attack would send, those made
    for one kind of rule among them (`attacks.updates.candidates`). The worst is then refined:
    `steps` times it is moved along its way from mu, by a ratio that is halved each time.

    `aim` is what harm means, F being the aggregate on these rows: "backwards", how far F falls
    short of mu along it, <mu - F, mu> / |mu|, which is what the step of honest clients is worth, to
    first order; "distance", |F - mu|, of which most may lie in a harmless direction. By its own
    measure it is no weaker than any attack that it tries.

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
    """How many strengths are tried, and how often the worst is refined."""
    aim: Literal["backwards", "distance"] = "backwards"
    """What the harm is measured by: the way back along the honest mean, or the distance from it."""

    def hostile(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
        mean, spread = honest.mean(0), honest.std(0, correction=0)
        rule = view.rule
        if rule is None or not float(spread.norm()) > 0.0:
            return -mean

        def harm(rows: Tensor) -> float:
            return self.harm(rule(torch.cat([rows.expand_as(view.byzantine), honest])), mean)

        grid = np.geomspace(2.0**-4, 2.0**8, self.steps)
        worst, most = -mean, harm(-mean)
        for rows in self._tried(honest, view, rng, grid.tolist()):
            if (harmed := harm(rows)) > most:
                worst, most = rows, harmed
        ratio = float(grid[1] / grid[0])
        for _ in range(self.steps):
            ratio **= 0.5
            for factor in (ratio, 1 / ratio):
                rows = mean + factor * (worst - mean)
                if (harmed := harm(rows)) > most:
                    worst, most = rows, harmed
        return worst

    def harm(self, aggregate: Tensor, mean: Tensor) -> float:
        """The harm of an `aggregate` `[m]` where the honest `mean` is `[m]`; see `aim`.

        Where the mean is zero there is no way back, and the distance is taken.
        """
        length = mean.norm()
        if self.aim == "backwards" and float(length) > 0.0:
            return float((mean - aggregate) @ mean / length)
        return float((aggregate - mean).norm())

    def _tried(
        self, honest: Tensor, view: View, rng: np.random.Generator, strengths: list[float]
    ) -> Iterator[Tensor]:
        """Rows `[m]` or `[b, m]` to try, one after the other."""
        mean = honest.mean(0)
        for way in directions(honest):
            for strength in strengths:
                yield mean + strength * way
        yield from fixed_rows(view, rng)
