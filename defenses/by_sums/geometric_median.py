"""The geometric median by smoothed Weiszfeld passes (RFA)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from defenses.by_sums.pull import pull
from defenses.geometry import Geometry
from defenses.types import SumRule
from defenses.weighing import WeightRule

SMOOTHING = 0.1
_FLOORS = {"private": 0.1, "plain": 1e-6}
_MOST_PASSES, _STILL = 1000, 1e-6


class GeometricMedian(SumRule, WeightRule):
    """The geometric median: the point with the least sum of distances to all updates (RFA).

    F(x) = argmin over v of (1/n) sum |x_k - v|_nu, where |u|_nu is |u|, smoothed to a parabola
    within nu of 0. From v = 0, each pass moves

        v <- sum b_k x_k / sum b_k = v + S / B,    b_k = min(1, nu / |x_k - v|),
        S = (1/n) sum b_k (x_k - v),               B = (1/n) sum b_k.

    Needs only sums, one for each of `passes`. More passes come nearer to the median, but under a
    privacy budget each then has more noise, so one or two work best. On rows, any number of passes
    costs one Gram matrix, O(n^2 d), so v is iterated until it converges (at most 1000 passes).
    Tolerates fewer than half Byzantine clients; robustness kappa = 4 (1 + f / (n - 2f))^2 at
    convergence, for nu -> 0 (Allouah et al. 2023, table 1).

    `smoothing` is nu. A client within nu of the center has full weight, so a tiny nu would let a
    server that chooses the center isolate one client. `floor` bounds B from below (0.1 under noise,
    else 1e-6), so a pass moves less where updates are farther away than nu / floor.

    *Sensitivity of the terms* (b_k (x_k - v), balance nu b_k), v a released value: adding, removing
    or zeroing out a client changes the first part by at most nu and the second by at most balance
    nu, jointly nu sqrt(1 + balance^2). Replacing a client changes them by 2 nu and balance nu (as 0
    <= b_k <= 1), jointly nu sqrt(4 + balance^2). Under privacy nu = clip / sqrt(1 + balance^2), so
    the sensitivity is the mechanism's clipping norm. The divisor is the mechanism's constant, and
    flooring the noised B is post-processing. All passes query the same row of the same cohort:
    together they are one event of noise z / sqrt(passes), not `passes` independently sampled
    events.

    Source: Pillutla, Kakade & Harchaoui 2022, "Robust aggregation for federated learning",
    algorithm 2 (started from v = 0, no movement, which saves a sum).

    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.9, 0.9], [1e9, 1e9]])
    >>> GeometricMedian(smoothing=1e-3)(rows, byzantine=1).round(decimals=2)
    tensor([0.9000, 0.9000])
    """

    passes: int = Field(2, ge=1, le=1000)
    """Number of passes; each moves the center once and needs one sum."""
    smoothing: float | None = Field(None, ge=1e-3)
    """Distance nu from the center within which a client has full weight; None: the default, or
    under privacy clip / sqrt(1 + balance^2)."""
    balance: float = Field(0.5, gt=0, le=10)
    """Scale of the factors b_k relative to the clipped differences, which are sent together."""
    floor: float | None = Field(None, gt=0, le=1)
    """Lower bound on B, the mean of the weights b_k, by which a pass divides; None: the default."""
    extra: ClassVar[int] = 1
    follows_clip: ClassVar[Mapping[str, float | None]] = {"smoothing": None}

    def kappa(self, n: int, byzantine: int) -> float:
        return 4 * (1 + byzantine / (n - 2 * byzantine)) ** 2

    def within(self, clip: float | None) -> GeometricMedian:
        if clip is None:
            return self
        if self.smoothing is not None:
            raise ValueError(
                "aggregation.smoothing is set, but under privacy it follows from privacy.clip "
                "(clip / sqrt(1 + balance^2)); remove the key"
            )
        smoothing = clip / math.hypot(1.0, self.balance)
        floor = _FLOORS["private"] if self.floor is None else self.floor
        return self.model_copy(update={"smoothing": smoothing, "floor": floor})

    def sensitivity(self, change: int) -> float:
        return self._smoothing * math.hypot(change, self.balance)

    def terms(self, rows: Tensor, center: Tensor) -> Tensor:
        ways, parts = pull(rows, center, self._smoothing)
        return torch.cat([ways, self.balance * self._smoothing * parts], dim=1)

    def unbounded(self, rows: Tensor, center: Tensor) -> Tensor:
        full = rows.new_full((len(rows), 1), self.balance * self._smoothing)
        return torch.cat([rows - center, full], dim=1)

    def step(self, center: Tensor, released: Tensor) -> Tensor:
        share = float(released[-1]) / (self.balance * self._smoothing)
        least = _FLOORS["plain"] if self.floor is None else self.floor
        return center + released[:-1] / max(share, least)

    def mix(self, geometry: Geometry, byzantine: int) -> Tensor:
        gram, n = geometry.gram, geometry.rows
        norms, at = gram.diagonal(), gram.new_zeros(n + 1)
        at[-1] = 1.0  # the starting point v = 0
        for _ in range(_MOST_PASSES):
            squared = norms - 2 * (gram @ at) + at @ gram @ at
            part = (self._smoothing / squared[:-1].clamp(min=0.0).sqrt()).clamp(max=1.0)
            moved = torch.cat([part / part.sum(), part.new_zeros(1)]) - at
            at = at + moved
            if float(moved @ gram @ moved) <= (_STILL * self._smoothing) ** 2:
                break
        return at[:-1]

    @property
    def _smoothing(self) -> float:
        return SMOOTHING if self.smoothing is None else self.smoothing
