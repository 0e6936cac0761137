"""What is claimed of a function that is audited: one (epsilon, delta), or a whole profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from accounting.empirical.claimed_releases import claimed_points, points_for_releases
from accounting.empirical.two_sample import Claim
from privfed.auditing.gaussian_rounds import gaussian_rounds
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
        """(epsilon, delta)-privacy, and no more. Raises `Refused` for what bounds nothing."""
        if not (0 <= epsilon < math.inf and 0 <= delta < 1):
            raise Refused(
                f"({epsilon:g}, {delta:g}) is claimed; expected a finite epsilon of 0 or more, and "
                "a delta of 0 or more and below 1"
            )
        return cls(((epsilon, delta),), epsilon, delta)

    @classmethod
    def of_profile(cls, profile: Callable[[float], float], delta: float) -> FunctionClaim:
        """The whole `profile`, epsilon by delta. Raises `Refused` where it claims nothing."""
        _refuse_pure(delta)
        return cls._of_points(points_for_releases(profile, delta), delta)

    @classmethod
    def of_gaussian(
        cls, noise_multiplier: float, rate: float, rounds: int, delta: float
    ) -> FunctionClaim:
        """What accountants know of `rounds` of Gaussian noise on sums over Poisson cohorts.

        `noise_multiplier` is its deviation over how far the neighbours' sums lie apart, and `rate`
        the probability with which the person takes part in a round. Relation: add/remove. Source:
        the project's own accountants (`accounting.guarantee`). Raises `Refused` for other numbers.
        """
        _refuse_pure(delta)
        event, count = gaussian_rounds(noise_multiplier, rate, rounds)
        return cls._of_points(claimed_points(event, count, delta), delta)

    @classmethod
    def _of_points(cls, points: Iterable[Claim], delta: float) -> FunctionClaim:
        """The profile of `points`. Raises `Refused` where all that is claimed is no bound."""
        claimed = tuple(points)
        if not claimed:
            raise Refused("the profile is infinite at every delta, so there is nothing to test")
        epsilon = next((epsilon for epsilon, at in claimed if at == delta), math.inf)
        return cls(claimed, epsilon, delta)


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
        return FunctionClaim.of_gaussian(
            noise_multiplier, rate, 1 if rounds is None else rounds, delta
        )
    if delta is not None and profile is not None:
        return FunctionClaim.of_profile(profile, delta)
    raise Refused(
        f"nothing is claimed of {function.name}; expected delta with an epsilon, or with a noise "
        "multiplier, or with a method of its own, profile(delta), that returns epsilon"
    )
