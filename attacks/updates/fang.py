"""Local model poisoning against a known aggregation rule: trimmed mean, median, or Krum."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import FullKnowledge, Knowledge, View

_LEAST = 1e-5
"""The search against Krum ends when lambda is at most this."""


class Fang(FullKnowledge):
    """Pushes each coordinate against the direction in which honest updates move it.

    s = sign(mu), with mu the honest mean. Against "trimmed_mean" (and the median) it sends, where
    s_j > 0, numbers below the smallest honest one m, uniform between m and `beyond` m if m < 0, or
    m / `beyond` if m > 0. Where s_j <= 0, it likewise sends numbers above the largest honest one.
    Against "krum" it sends -lambda s, with lambda halved from its upper bound until the rule
    selects a Byzantine row, down to 1e-5.

    Knows all honest updates, and against Krum the rule. Source: Fang, Cao, Jia & Gong 2020,
    sections 4.2 and 4.3 (applied to updates, so the paper's last global model is 0 here).

    >>> import torch, numpy
    >>> view = View(1, torch.zeros(2, 1), torch.tensor([[-1.0], [4.0]]))
    >>> sent = Fang().corrupt(view, {}, numpy.random.default_rng(0))[0]
    >>> bool(((sent <= -1.0) & (sent >= -2.0)).all())
    True
    """

    knows: ClassVar[frozenset[Knowledge]] = FullKnowledge.knows | {Knowledge.RULE}
    against: Literal["trimmed_mean", "krum"] = "trimmed_mean"
    """Aggregation rule against which rows are made; "trimmed_mean" includes the median."""
    beyond: float = Field(2.0, gt=1, le=1e3)
    """Factor that limits the distance of sent numbers from the range of the honest numbers."""

    def malicious_row(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
        if self.against == "krum":
            return self._picked(honest, view)
        up = honest.mean(0) > 0
        edge = torch.where(up, honest.min(0).values, honest.max(0).values)
        # Away from s means smaller where s_j > 0: a positive edge shrinks, a negative edge grows.
        ahead = (edge > 0) == up
        end = torch.where(ahead, edge / self.beyond, edge * self.beyond)
        part = torch.from_numpy(rng.uniform(size=tuple(view.byzantine.shape))).to(honest)
        return edge + part * (end - edge)

    def _picked(self, honest: Tensor, view: View) -> Tensor:
        """Returns the row -lambda s, with the largest lambda tried for which the rule selects that
        row.

        If the rule selects no such row, the first lambda of at most `_LEAST` is used, untried. If
        the rule is unknown, the honest mean is returned.
        """
        if view.rule is None:
            return honest.mean(0)
        d, byzantine = honest.shape[1], len(view.byzantine)
        signs = honest.mean(0).sign()
        apart = torch.cdist(honest, honest).sort(dim=1).values
        nearest = apart[:, 1 : max(2, len(honest) - 1)].sum(1).min()
        count = max(1, len(honest) - byzantine - 1)
        bound = nearest / (count * d**0.5) + honest.norm(dim=1).max() / d**0.5
        strength = float(bound)
        while strength > _LEAST:
            row = -strength * signs
            aggregate = view.rule(torch.cat([row.expand(byzantine, -1), honest]))
            if torch.allclose(aggregate, row, atol=1e-6 * strength, rtol=1e-4):
                break
            strength /= 2
        return -strength * signs
