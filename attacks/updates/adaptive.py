"""An attack that knows the aggregation rule and optimises its row against that rule."""

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
    """Sends the most harmful of many rows: directions with several strengths, and other attacks'.

    The candidates are mu + gamma p, with p along -mu, -sign(mu), -sigma or the first principal
    direction of honest updates (both signs), scaled to the norm of sigma. mu and sigma are the mean
    and standard deviation of honest updates, and gamma is from a geometric grid of `steps` values
    between 2^-4 and 2^8. The rows of all other attacks are candidates, too, including those made
    for one kind of rule (`attacks.updates.candidates`). The most harmful candidate is then refined
    `steps` times: its difference from mu is multiplied, and divided, by a ratio, and the most
    harmful row is kept. The square root of the ratio is taken each time.

    `aim` is the measure of harm, with F the aggregate of all rows. "backwards" is <mu - F, mu> /
    |mu|: how far F falls short of mu in the direction of mu, the first-order loss of progress of
    honest clients. "distance" is |F - mu|, most of which may be in a harmless direction. By the
    chosen measure this attack is at least as strong as each of its candidates. If the rule is
    unknown, or all honest updates are equal, it sends -mu.

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
    """Number of strengths gamma that are tried, and of refinements of the most harmful row."""
    aim: Literal["backwards", "distance"] = "backwards"
    """Measure of harm: the loss of progress along the honest mean, or the distance from it."""

    def malicious_row(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
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
        """Returns the harm of an `aggregate` `[m]` if the honest mean is `mean` `[m]`, by `aim`; by
        "distance" if the mean is zero.
        """
        length = mean.norm()
        if self.aim == "backwards" and float(length) > 0.0:
            return float((mean - aggregate) @ mean / length)
        return float((aggregate - mean).norm())

    def _tried(
        self, honest: Tensor, view: View, rng: np.random.Generator, strengths: list[float]
    ) -> Iterator[Tensor]:
        """Yields candidates: first mu + gamma p `[m]`, for all attackers, for each of `directions`
        p and each gamma in `strengths`, with mu the mean of the `honest` rows; then the rows `[b,
        m]` that each attack in `FIXED` would send (`fixed_rows`).
        """
        mean = honest.mean(0)
        for way in directions(honest):
            for strength in strengths:
                yield mean + strength * way
        yield from fixed_rows(view, rng)
