"""FLTrust: weights updates by their cosine with an update that the server computed itself."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from defenses.finite import SHORTEST, usable_places
from defenses.types import RowRule, require_floats
from defenses.weighing import refuse_too_many


class FlTrust(RowRule):
    """Rescales updates to the norm of the server's update and weights them by their cosine with it.

    F(x) = (1 / sum s_k) sum of s_k (|g| / |x_k|) x_k,   s_k = max(0, cos(x_k, g)),

    where g is the update that the server trained on its own root set. If no cosine is positive, the
    aggregate is zero.

    Needs rows and the root update. Tolerates any number of Byzantine clients, as far as the root
    set represents the clients' data; no kappa. O(nd).

    Source: Cao, Fang, Liu & Gong 2021, "FLTrust", algorithm 2.

    >>> import torch
    >>> rows = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1e9, 0.0]])
    >>> FlTrust()(rows, byzantine=1, root=torch.tensor([3.0, 4.0]))
    tensor([2.1429, 2.8571])
    """

    def needs(self) -> frozenset[str]:
        return frozenset({"root"})

    tolerance: ClassVar[str] = "any number, as far as the root set distinguishes them"

    def most(self, n: int) -> int:
        return n

    def __call__(self, rows: Tensor, byzantine: int, *, root: Tensor) -> Tensor:  # type: ignore[override]
        refuse_too_many(len(rows), byzantine, (), self)
        require_floats(rows)
        keep = usable_places(rows)
        rows = rows.detach() if keep is None else rows.detach()[keep]
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        length = torch.linalg.vector_norm(root, dtype=torch.float64)
        cosines = (rows @ root).double() / (norms * length)
        directed = (norms > SHORTEST) & (length > SHORTEST)
        trust = torch.where(directed, cosines.clamp(0.0, 1.0), 0.0)
        if not float(trust.sum()) > 0.0:
            return torch.zeros_like(root)
        weights = torch.where(directed, trust * length / norms, 0.0) / trust.sum()
        return torch.mv(rows.T, weights.to(rows.dtype))
