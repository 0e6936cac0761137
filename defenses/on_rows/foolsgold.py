"""FoolsGold: clients whose updates look alike are one attacker's, and share one vote."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from defenses.geometry import Geometry
from defenses.weighing import WeightRule


class FoolsGold(WeightRule):
    """Updates weighed down by how much they resemble another's.

    F(x) = (1 / sum a_k) sum of a_k x_k. With s_ij the cosine of x_i and x_j, s_ii = 0, and v_i the
    largest of i's, s_ij is multiplied by v_i / v_j where v_j > v_i (pardoning), a_i = 1 - max_j
    s_ij, divided by the largest a, and a_i <- ln(a_i / (1 - a_i)) + 1/2 within [0, 1]. Where all a
    are 0, so is the aggregate.

    Needs rows. Against sybils that push the same way, any number but all; honest clients have to
    differ (IID data makes them look like sybils), and one hostile client alone is not seen: no
    kappa. One Gram matrix, O(n^2 d).

    This is the rule on one round's updates. Published with each client's sum of updates over rounds
    in place of x in s, which needs the same clients in every round.

    Source: Fung, Yoon & Beschastnikh 2020, "The limitations of federated learning in sybil
    settings", algorithm 1.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]])
    >>> FoolsGold()(rows, byzantine=2)
    tensor([0.5000, 0.5000])
    """

    tolerance: ClassVar[str] = "sybils that push the same way"

    def most(self, n: int) -> int:
        return n

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        if geometry.rows == 1:
            return geometry.gram.new_ones(1)
        alike = geometry.cosines().fill_diagonal_(0.0)
        most = alike.max(dim=1).values  # of nobody less than 0
        pardon = torch.where(most[None, :] > most[:, None], most[:, None] / most[None, :], 1.0)
        weight = 1 - (alike * pardon).max(dim=1).values
        if not float(weight.max()) > 0.0:
            return weight.clamp(min=0.0)
        weight = (torch.logit(weight.clamp(min=0.0) / weight.max()) + 0.5).clamp(0.0, 1.0)
        return weight / weight.sum()
