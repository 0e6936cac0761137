"""FoolsGold: reduces the weight of clients with similar updates, presumably sybils."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from defenses.finite import LONGEST
from defenses.geometry import Geometry
from defenses.history import Histories, HistoryRule
from defenses.weighing import WeightRule, admitted, aggregate

_ROUNDING = 1e-6
"""Rounding error of a cosine of float32 rows; if every row has a duplicate, no a_i exceeds it."""


class FoolsGold(WeightRule, HistoryRule):
    """Reduces the weight of clients whose histories resemble another client's.

    F(x) = (1 / sum a_k) sum of a_k x_k. h_i is the sum of all updates of client i until now, s_ij
    the cosine of h_i and h_j (s_ii = 0), and v_i the largest s_ij of client i. s_ij is multiplied
    by v_i / v_j where v_j > v_i (pardoning). Then a_i = 1 - max_j s_ij is divided by the largest a,
    and replaced by ln(a_i / (1 - a_i)) + 1/2 within [0, 1]. If all a are 0, so is the
    aggregate. All coordinates count equally (published: optionally weighted by their importance).

    Needs rows, client identities and h: d numbers per client. Tolerates any number of sybils that
    push in the same direction over rounds, as long as some client is honest. Honest clients must
    differ (IID data makes them look like sybils), and a single Byzantine client is not detected: no
    kappa. One Gram matrix, O(n^2 d).

    For clients that take part once, and with `history` off, h is this round's update: sybils can
    then evade the rule with different noise in each round.

    Source: Fung, Yoon & Beschastnikh 2020, "The limitations of federated learning in sybil
    settings", algorithm 1.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]])
    >>> FoolsGold()(rows, byzantine=2)
    tensor([0.5000, 0.5000])
    """

    history: bool = True
    """Whether sums of updates over rounds are compared (as
    published) instead of one round's updates."""

    tolerance: ClassVar[str] = "sybils with similar updates"

    def most(self, n: int) -> int:
        return n

    def keeps(self, d: int) -> int:
        return d if self.history else 0

    def __call__(
        self,
        rows: Tensor,
        byzantine: int,
        *,
        histories: Histories | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        if histories is None:
            return aggregate(rows, byzantine, (), self)
        return self.with_histories(rows, byzantine, histories)[0]

    def with_histories(
        self,
        rows: Tensor,
        byzantine: int,
        histories: Histories,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        among = admitted(rows, byzantine, (), self)
        rows, keep, sums = among.rows, among.keep, histories.clients.to(rows)
        if not among.count:
            return among.nothing(), sums.float()
        if keep is None:
            sums = _within(sums + rows)
        else:
            sums = sums.index_copy(0, keep, _within(sums[keep] + rows[keep]))
        weights = self.mix(Geometry.of(sums, keep), among.byzantine)
        return among.weighed(weights), sums.float()

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        if geometry.rows == 1:
            return geometry.gram.new_ones(1)
        alike = geometry.cosines().fill_diagonal_(0.0)
        most = alike.max(dim=1).values  # at least 0 for every row
        pardon = torch.where(most[None, :] > most[:, None], most[:, None] / most[None, :], 1.0)
        weight = 1 - (alike * pardon).max(dim=1).values
        if not float(weight.max()) > _ROUNDING:
            return torch.zeros_like(weight)
        weight = (torch.logit(weight.clamp(min=0.0) / weight.max()) + 0.5).clamp(0.0, 1.0)
        return weight / weight.sum()


def _within(sums: Tensor) -> Tensor:
    """Returns `sums` `[n, d]` with rows longer than `LONGEST` scaled down to that norm."""
    norms: Tensor = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
    return sums * (LONGEST / norms).clamp(max=1.0)
