"""Nearest-neighbour averaging around a trusted row: the server's own update."""

from __future__ import annotations

import torch
from torch import Tensor

from defenses.finite import usable
from defenses.types import RowRule
from defenses.weighing import admitted


class TrustedNeighbours(RowRule):
    """The mean of the n - f updates nearest to an update that the server computed itself (MoNNA).

    F(x) = (1/(n - f)) sum of the n - f updates x_k with the least |x_k - g|,

    where g is the update that the server trained on its own root set. The published rule is for
    nodes that learn from one another, where g is a node's own row and part of the average. Here g
    is the server's update, which is trusted; it selects the rows but is not averaged. If g is not
    finite, the aggregate is zero.

    Needs rows and the root update. Tolerates fewer than half Byzantine clients, as far as the root
    set represents the clients' data: no kappa, since g is none of the rows. O(nd), without a Gram
    matrix.

    Source: Farhadkhani, Guerraoui, Gupta, Hoang, Pinot & Stephan 2023, "Robust collaborative
    learning with linear gradient overhead" (NNA, its aggregation).

    >>> import torch
    >>> rows = torch.tensor([[1.0, 1.0], [3.0, 1.0], [-1e9, 0.0]])
    >>> TrustedNeighbours()(rows, byzantine=1, root=torch.tensor([2.0, 2.0]))
    tensor([2., 1.])
    """

    def needs(self) -> frozenset[str]:
        return frozenset({"root"})

    def __call__(self, rows: Tensor, byzantine: int, *, root: Tensor) -> Tensor:  # type: ignore[override]
        among = admitted(rows, byzantine, (), self)
        if not among.count or not bool(usable(root[None]).all()):
            return among.nothing()
        distances = _from(root.detach(), among.rows)
        distances = distances if among.keep is None else distances[among.keep]
        nearest = distances.argsort(stable=True)[: among.count - among.byzantine]
        weights = torch.zeros_like(distances)
        weights[nearest] = 1 / len(nearest)
        return among.weighed(weights)


def _from(point: Tensor, rows: Tensor) -> Tensor:
    """Returns distances `[n]` of `rows` `[n, d]` from `point` `[d]`, row by row."""
    away = torch.empty_like(point)
    norms = [torch.linalg.vector_norm(torch.sub(row, point, out=away)) for row in rows]
    return torch.stack(norms)
