"""What is claimed of a function that is audited: one (epsilon, delta), or a whole profile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from accounting.empirical.claimed_releases import claimed_points, points_for_releases
from accounting.empirical.two_sample import Claim
from accounting.guarantee import guarantee
from privfed.auditing.gaussian_rounds import gaussian_round
from privfed.auditing.released_function import ReleasedFunction
from privfed.errors import Refused


@dataclass(frozen=True)
class FunctionClaim:
    """The claimed `points` of a privacy profile; at `delta` that is `epsilon`."""

    points: tuple[Claim, ...]
    epsilon: float
    delta: float

    @classmethod
    def at(cls, epsilon: float, delta: float) -> FunctionClaim:
        """(epsilon, delta)-privacy, and no more. Raises `Refused` for what claims nothing."""
        if not (0 <= epsilon < math.inf and 0 <= delta < 1):
            raise Refused(
                f"claimed is ε = {epsilon:g} at δ = {delta:g}; expected an ε from 0 on that is "
                "finite, and a δ from 0 to below 1"
            )
        return cls(((epsilon, delta),), epsilon, delta)

    @classmethod
    def of_profile(cls, profile: Callable[[float], float], delta: float) -> FunctionClaim:
        """The whole `profile`, epsilon by delta. Raises `Refused` where it claims nothing."""
        _refuse_pure(delta)
        points = tuple(points_for_releases(profile, delta))
        if not points:
            raise Refused("the profile is infinite at every delta, so there is nothing to test")
        epsilon = next((epsilon for epsilon, at in points if at == delta), math.inf)
        return cls(points, epsilon, delta)

    @classmethod
    def of_gaussian(
        cls, noise_multiplier: float, rate: float, rounds: int, delta: float
    ) -> FunctionClaim:
        """What accountants know of `rounds` of Gaussian noise on sums over Poisson cohorts.

        `noise_multiplier` is its deviation over how far the neighbours' sums lie apart, and `rate`
        the probability with which the person takes part in a round. Relation: add/remove. Source:
        the project's own accountants (`accounting.guarantee`). Raises `Refused` where these know
        nothing finite.
        """
        _refuse_pure(delta)
        if not isinstance(rounds, int) or rounds < 1 or rate <= 0:
            raise Refused(
                f"claimed are {rounds} rounds at a sampling rate of {rate:g}; expected a whole "
                "number from 1 on, and a rate above 0"
            )
        event = gaussian_round(noise_multiplier, rate)
        points = tuple(claimed_points(event, rounds, delta))
        epsilon = guarantee({event: rounds}, delta).epsilon
        if epsilon == math.inf:
            raise Refused(
                f"noise of multiplier {noise_multiplier:g} has no finite ε at δ = {delta:g} over "
                f"{rounds} rounds, so there is nothing to test"
            )
        return cls(points, epsilon, delta)


def _refuse_pure(delta: float) -> None:
    if not 0 < delta < 1:
        raise Refused(
            f"delta is {delta:g}; a profile is tested at a delta above 0 and below 1; a claim at "
            "delta 0 is one of an epsilon alone"
        )


def claim_of(
    function: ReleasedFunction,
    claimed_epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    rounds: int | None = None,
) -> FunctionClaim:
    """The claim that is stated beside `function`; else the one that it has itself.

    Raises `Refused` where both epsilon and noise are stated, or neither and it has no `profile`.
    """
    if noise_multiplier is None and (sampling_rate is not None or rounds is not None):
        raise Refused("sampling rate and rounds go with a noise multiplier; give that, too")
    if claimed_epsilon is not None and noise_multiplier is not None:
        raise Refused("both an epsilon and a noise multiplier are claimed; give one of them")
    profile = function.profile
    if delta is not None and claimed_epsilon is not None:
        return FunctionClaim.at(claimed_epsilon, delta)
    if delta is not None and noise_multiplier is not None:
        rate = 1.0 if sampling_rate is None else sampling_rate
        count = 1 if rounds is None else rounds
        return FunctionClaim.of_gaussian(noise_multiplier, rate, count, delta)
    if delta is not None and profile is not None:
        return FunctionClaim.of_profile(profile, delta)
    raise Refused(
        f"nothing is claimed of {function.name}; expected delta with an epsilon, or with a noise "
        "multiplier, or with a method of its own, profile(delta), that returns epsilon"
    )
