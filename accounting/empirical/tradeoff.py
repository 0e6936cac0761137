"""Trade-off curves: how well two neighbours can be told apart at all, error against error.

f(a) is the least false negative rate of a test whose false positive rate is a. Source: Dong, Roth &
Su 2022, "Gaussian differential privacy", definitions 2.1 and 2.3 and section 2.3. The curves here
are symmetric: none says which of the neighbours is which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from accounting.bounds.closed import gaussian_epsilon
from accounting.empirical.two_sample import Claim

Numbers = NDArray[np.float64]
_LARGEST_EXPONENT = 700.0
_LARGEST_MU = 100.0


class TradeoffCurve(Protocol):
    """A symmetric trade-off curve f, by which a run is hypothesised to be f-private."""

    def reflected(self, x: Numbers) -> Numbers:
        """f(1 - x) for every one of `x` in [0, 1]; it does not decrease in x."""
        ...


def gaussian_reflected(x: Numbers, mu: float | Numbers) -> Numbers:
    """f(1 - x) of the curve between N(0, 1) and N(`mu`, 1)."""
    return np.asarray(ndtr(ndtri(x) - mu))


@dataclass(frozen=True)
class GaussianCurve:
    """The curve between N(0, 1) and N(`mu`, 1): f(1 - x) = Phi(Phi^-1(x) - mu)."""

    mu: float

    def reflected(self, x: Numbers) -> Numbers:
        return gaussian_reflected(x, self.mu)

    def epsilon(self, delta: float) -> float:
        """The epsilon at `delta` that this curve is."""
        return gaussian_epsilon(1 / self.mu, delta) if self.mu else 0.0

    @classmethod
    def of(cls, claim: Claim) -> GaussianCurve:
        """The Gaussian curve whose epsilon at the claimed delta is the claimed one."""
        epsilon, delta = claim
        if cls(_LARGEST_MU).epsilon(delta) <= epsilon:
            return cls(_LARGEST_MU)
        return cls(float(brentq(lambda mu: cls(mu).epsilon(delta) - epsilon, 0.0, _LARGEST_MU)))


@dataclass(frozen=True)
class ClaimedCurve:
    """The curve that `claims` imply, points (epsilon, delta) of one privacy profile.

    f(a) is the largest of 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a) and 0 over all of
    them (Dong, Roth & Su 2022, proposition 2.5, in both directions). Fewer points only lower it,
    and a test against a lower curve refutes less.
    """

    claims: Sequence[Claim]

    def reflected(self, x: Numbers) -> Numbers:
        epsilons, deltas = np.array(self.claims, dtype=np.float64).T
        epsilons = np.minimum(epsilons, _LARGEST_EXPONENT)
        above = np.asarray(x)[..., None] - deltas
        few = above / np.exp(epsilons)
        many = above - np.expm1(epsilons) * (1 - np.asarray(x)[..., None])  # no 1 takes digits of x
        return np.asarray(np.maximum(np.maximum(few, many).max(-1), 0.0))
