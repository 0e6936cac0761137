"""Trade-off functions: the least error of any test between two neighbours.

f(a) is the least false negative rate of a test whose false positive rate is a. Source: Dong, Roth &
Su 2022, "Gaussian differential privacy", definitions 2.1 and 2.3 and section 2.3. The functions
here are symmetric in the two neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from accounting.bounds.closed import gaussian_epsilon
from accounting.empirical.two_sample import Claim

Numbers = NDArray[np.float64]
_LARGEST_EXPONENT = 700.0
_LARGEST_MU = 100.0


def gaussian_reflected(x: Numbers, mu: float | Numbers) -> Numbers:
    """Returns f(1 - x) of the trade-off function between N(0, 1) and N(`mu`, 1)."""
    return np.asarray(ndtr(ndtri(x) - mu))


@dataclass(frozen=True)
class GaussianCurve:
    """The trade-off function between N(0, 1) and N(`mu`, 1): f(1 - x) = Phi(Phi^-1(x) - mu)."""

    mu: float

    def reflected(self, x: Numbers) -> Numbers:
        """Returns f(1 - x) for each of `x` in [0, 1]; it is non-decreasing in x."""
        return gaussian_reflected(x, self.mu)

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon of this curve at `delta`."""
        return gaussian_epsilon(1 / self.mu, delta) if self.mu else 0.0

    @classmethod
    def of(cls, claim: Claim) -> GaussianCurve:
        """Returns the Gaussian curve with the claimed epsilon at delta; its mu is at most 100."""
        epsilon, delta = claim
        if cls(_LARGEST_MU).epsilon(delta) <= epsilon:
            return cls(_LARGEST_MU)
        return cls(float(brentq(lambda mu: cls(mu).epsilon(delta) - epsilon, 0.0, _LARGEST_MU)))


@dataclass(frozen=True)
class ClaimedCurve:
    """The trade-off function implied by `claims`, points (epsilon, delta) of one privacy profile.

    f(a) is the largest of 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a) and 0 over all
    `claims` (Dong, Roth & Su 2022, proposition 2.5, in both directions). With fewer points f is
    only smaller, and a test of a smaller f refutes less.
    """

    claims: Sequence[Claim]

    @cached_property
    def _points(self) -> tuple[Numbers, Numbers, Numbers]:
        """Values of e^epsilon, e^epsilon - 1 and delta at all `claims`."""
        epsilons, deltas = np.array(self.claims, dtype=np.float64).T
        epsilons = np.minimum(epsilons, _LARGEST_EXPONENT)
        return np.exp(epsilons), np.expm1(epsilons), deltas

    def reflected(self, x: Numbers) -> Numbers:
        ratios, gains, deltas = self._points
        x = np.asarray(x)[..., None]
        above = x - deltas
        few, many = above / ratios, above - gains * (1 - x)  # no cancellation
        return np.asarray(np.maximum(np.maximum(few, many).max(-1), 0.0))


TradeoffCurve = GaussianCurve | ClaimedCurve
"""A symmetric trade-off function f, for the hypothesis that a run is f-DP."""
