"""FLTrust: updates count by their agreement with one that the server made itself."""

from __future__ import annotations

import torch
from torch import Tensor

from defenses.finite import split
from defenses.types import RowRule, require_floats


class FlTrust(RowRule):
    """Updates, cut to the length of the server's own, weighed by their cosine with it.

    F(x) = (1 / sum s_k) sum of s_k (|g| / |x_k|) x_k,   s_k = max(0, cos(x_k, g)),

    where g is the update that the server trained on a root set of its own. Where no cosine is
    positive the aggregate is zero.

    Needs rows and the root update. Tolerates any number hostile, as far as the root set stands for
    the clients' data; no kappa. O(nd).

    Source: Cao, Fang, Liu & Gong 2021, "FLTrust", algorithm 2.

    >>> import torch
    >>> rows = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1e9, 0.0]])
    >>> FlTrust()(rows, byzantine=1, root=torch.tensor([3.0, 4.0]))
    tensor([2.1429, 2.8571])
    """

    def needs(self) -> frozenset[str]:
        return frozenset({"root"})

    def most(self, n: int) -> int:
        return n

    def __call__(self, rows: Tensor, byzantine: int, *, root: Tensor) -> Tensor:  # type: ignore[override]
        require_floats(rows)
        keep, _ = split(rows, byzantine)
        rows = rows if keep is None else rows[keep]
        norms = torch.linalg.vector_norm(rows, dim=1)
        length = torch.linalg.vector_norm(root)
        trust = ((rows @ root) / (norms * length)).nan_to_num(nan=0.0).clamp(min=0.0)
        total = trust.sum()
        if not float(total) > 0.0:
            return torch.zeros_like(root)
        weights = torch.where(norms > 0, trust * length / norms, 0.0) / total
        return torch.mv(rows.T, weights)
