"""Adaptive clipping: the clip follows a quantile of clients' norms, at a small part of the noise.

Andrew, Thakkar, McMahan & Ramaswamy 2021, "Differentially private learning with adaptive
clipping", Algorithm 1. Beside its clipped update each client tells whether its *unclipped* norm is
within the clip C, as b - 1/2 with b in {0, 1}. From the noised sum of these, over the divisor m,

    b~ = 1/2 + (sum (b_k - 1/2) + N(0, sigma_b^2)) / m,     C <- C exp(-rate (b~ - quantile)).

One release, one event. Noise z_delta C on the update and sigma_b on the count is one Gaussian of
multiplier z, z^-2 = z_delta^-2 + (2 sigma_b)^-2 (theorem 1): they are coordinates of one vector,
the count weighed so that one deviation serves both, with the joint sensitivity

    S = sqrt(C^2 + weight^2 / 4),   weight = z_delta C / sigma_b,   z S = z_delta C.

C follows from what was released before, and z does not depend on it: every round is the same event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from privfed.errors import Refused

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class FollowsQuantile(Protocol):
    """A mechanism whose clip may follow a quantile of clients' norms."""

    @property
    def clip_quantile(self) -> float:
        """Which quantile it follows, between 0 and 1."""
        ...


@dataclass(frozen=True)
class Split:
    """How the multiplier z is shared between an update and its count.

    `update` is z_delta: the update's noise deviation over the clip; `count` is sigma_b.
    """

    update: float
    count: float

    @classmethod
    def of(cls, noise_multiplier: float, count: float) -> Split:
        """The split of z where `count` is sigma_b.

        Raises `Refused` where the count alone would spend more than z allows.
        """
        if noise_multiplier == 0.0:
            return cls(0.0, count)
        left = noise_multiplier**-2 - (2 * count) ** -2
        if left <= 0:
            raise Refused(
                f"adaptive clipping: a count noised by {count:g} clients leaves nothing of the "
                f"noise multiplier {noise_multiplier:g}; expected privacy.count_noise above half "
                "of it: raise that, the cohort, or epsilon"
            )
        return cls(left**-0.5, count)

    def weight(self, clip: float) -> float:
        """What the count's coordinate is multiplied by, so that one deviation serves both."""
        return self.update * clip / self.count if self.update else clip / self.count

    def bound(self, clip: float) -> float:
        """The joint sensitivity S."""
        return math.hypot(clip, self.weight(clip) / 2)


def next_clip(clip: float, share: float, quantile: float, rate: float) -> float:
    """The clip after a round in which about `share` of the cohort was within it."""
    step = rate * (share - quantile)
    return min(max(clip * math.exp(-step), 1e-6), 1e20)


def share_within(noised_count: Tensor, weight: float, divisor: float) -> float:
    """b~, the share of the cohort within the clip, from the count's noised coordinate."""
    return 0.5 + float(noised_count) / (weight * divisor)
