"""What another pipeline claims: points of one privacy profile, and by which noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from accounting.bounds.closed import gaussian_epsilon
from accounting.empirical.claimed_profile import claimed_profile
from accounting.empirical.tradeoff import GaussianCurve
from accounting.empirical.two_sample import Claim
from privfed.auditing.gaussian_rounds import gaussian_rounds
from privfed.errors import Refused

_DELTAS = (*np.geomspace(1e-15, 0.1, 29).tolist(), *np.arange(0.15, 1.0, 0.05).tolist())
"""Where the curve of a Gaussian claim is looked at, beside its own delta."""


@dataclass(frozen=True)
class PipelineClaim:
    """`points` (epsilon, delta) that all hold, the one to be shown first, and their source `by`.

    `gaussian`: the points are a whole profile, that of Gaussian noise.
    """

    points: Sequence[Claim]
    by: str
    gaussian: bool

    @classmethod
    def at(cls, points: Sequence[Claim]) -> PipelineClaim:
        """These points, and nothing of the mechanism."""
        return cls(points, "whatever the mechanism", gaussian=False)

    @classmethod
    def of_gaussian(cls, claim: Claim) -> PipelineClaim:
        """The one Gaussian mechanism that is `claim`, with everybody in each round."""
        return cls(gaussian_points(claim), "by Gaussian noise", gaussian=True)

    @classmethod
    def of_rounds(
        cls, noise_multiplier: float, sampling_rate: float, rounds: int, delta: float
    ) -> PipelineClaim:
        """What accountants know of so many `rounds` of Gaussian noise on Poisson cohorts.

        `noise_multiplier` is its deviation over how far neighbours' sums lie apart, and
        `sampling_rate` the probability with which a client takes part. Raises `Refused` where
        nothing finite is claimed.
        """
        event, count = gaussian_rounds(noise_multiplier, sampling_rate, rounds)
        points = list(claimed_profile({event: count}, delta))
        if not points or points[0][1] != delta:
            raise Refused(
                f"noise of multiplier {noise_multiplier:g} has no finite ε at δ = {delta:g} over "
                f"{rounds} rounds, so there is nothing to test"
            )
        words = f"by Gaussian noise of multiplier {noise_multiplier:g} in {rounds} rounds"
        sampled = f" on Poisson cohorts of rate {sampling_rate:g}" if sampling_rate < 1 else ""
        return cls(points, words + sampled, gaussian=True)


def gaussian_points(claim: Claim) -> list[Claim]:
    """The `claim`, and further points of the Gaussian mechanism of which it is one."""
    delta = claim[1]
    # A root that is 0 from there on, and not one point; of a small delta as far as a double shows.
    at_epsilon_0 = max(2 * float(ndtri((1 + delta) / 2)), math.sqrt(2 * math.pi) * delta)
    mu = max(GaussianCurve.of(claim).mu, at_epsilon_0)
    return [claim, *((gaussian_epsilon(1 / mu, delta), delta) for delta in _DELTAS)]
