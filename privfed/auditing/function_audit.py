"""A test of a function that somebody else wrote: does what it releases keep its claim?

The function (`privfed.auditing.released_function`) is called thousands of times on either of two
neighbouring inputs. Scores that are learned on one half of the releases tell them apart
(`accounting.empirical.release_scores`), and the other half is held against the claimed points of a
privacy profile (`accounting.empirical.two_sample`), as a mechanism of privfed is. The inputs are
the function's own: they refute a claim about the neighbours that it was written for, and whoever
chooses dull ones is told nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting.documents import encoded
from accounting.empirical.claimed_releases import claimed_points, points_for_releases
from accounting.empirical.release_scores import linear_scores, quadratic_scores, repetition_scores
from accounting.empirical.two_sample import Claim, Verdict, judge
from accounting.empirical.verdicts import Verdicts
from accounting.errors import Unaccountable
from accounting.events import Event
from accounting.noises import Gaussian, natural_number
from accounting.releases import PoissonSampled
from privfed.auditing.released_function import MOST_NUMBERS, ReleasedFunction
from privfed.core.errors import Refused, public_text


def gaussian_rounds(noise_multiplier: float, rate: float, rounds: int) -> tuple[Event, int]:
    """The event of one round, on Poisson cohorts where `rate` is below 1, and how many there are.

    `noise_multiplier` is its deviation over how far the neighbours' sums lie apart, and `rate` the
    probability with which a client takes part. Raises `Refused` for numbers that are none of these.
    """
    if rate == 0:
        raise Refused("sampling rate is 0, so that nobody takes part; expected one above 0")
    try:
        count, noise = natural_number(rounds, "rounds"), Gaussian(float(noise_multiplier))
        full = Event(noise, "full")
        return (full if rate == 1 else Event(PoissonSampled(rate, noise), "poisson")), count
    except Unaccountable as error:
        raise Refused(f"the claim of Gaussian noise: {public_text(error)}") from error


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


Numbers = NDArray[np.float64]
_SCORES: dict[str, Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]] = {
    "means": linear_scores,
    "spreads": quadratic_scores,
    "repetitions": repetition_scores,
}
_SECONDS, _FEWEST, _MOST, _MOST_NUMBERS = 60.0, 400, 100_000, 2**23
"""How long an audit may take, about, how many releases it makes of each neighbour, and of numbers.
"""


@dataclass(frozen=True)
class ScoreVerdict:
    """What releases say by one `score` of them."""

    score: str
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """The score's object in `privfed audit --function --json`."""
        return {
            "score": self.score,
            "epsilon_lower_bound": self.verdict.epsilon_lower,
            "p_value": self.verdict.p_value,
            "against": dict(zip(("epsilon", "delta"), self.verdict.claim, strict=True)),
        }


@dataclass(frozen=True)
class FunctionAudit(Verdicts):
    """What releases of the function `name` say of its `claim`, by each of several scores.

    `releases` of `numbers` each were made for either neighbour, and `aborted` is which share of
    them had a number that is not finite: without the member, and with it.
    """

    name: str
    claim: FunctionClaim
    tested: tuple[ScoreVerdict, ...]
    confidence: float
    releases: int
    numbers: int
    aborted: tuple[float, float]

    @property
    def p_value(self) -> float:
        """The smallest of the scores' p-values, times their number."""
        return min(1.0, len(self.tested) * min(test.verdict.p_value for test in self.tested))

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed audit --function --json` prints."""
        return {
            "refuted": self.refuted,
            "doubted": self.doubted,
            "p_value": self.p_value,
            "function": self.name,
            "epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "confidence": self.confidence,
            "releases": self.releases,
            "numbers": self.numbers,
            "aborted": dict(zip(("without", "with"), self.aborted, strict=True)),
            "scores": encoded(self.tested),
        }


def audit_function(
    function: ReleasedFunction,
    claim: FunctionClaim,
    releases: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
) -> FunctionAudit:
    """Call `function` that often for either neighbour, and hold its releases against `claim`.

    `releases`: 100,000, or as many as a minute or two allows. A `seed` makes the generators that
    the function is given repeatable; without, they are the system's own. Raises `Refused` where
    the function fails, or returns no numbers, or not always as many, and for another confidence.
    """
    if not 0 < confidence < 1:
        raise Refused(f"confidence is {confidence:g}; expected a number above 0 and below 1")
    count = releases or _affordable(function)
    without, with_member = observe(function, count, seed)
    tested = []
    for name, scores in _SCORES.items():
        verdict = judge(*scores(without, with_member), claim.delta, confidence, claim.points)
        tested.append(ScoreVerdict(name, verdict))
    aborted = [float((~np.isfinite(each)).any(1).mean()) for each in (without, with_member)]
    return FunctionAudit(
        function.name,
        claim,
        tuple(tested),
        confidence,
        count,
        without.shape[1],
        (aborted[0], aborted[1]),
    )


def observe(
    function: ReleasedFunction, count: int, seed: int | None = None
) -> tuple[Numbers, Numbers]:
    """`count` releases `[count, k]` without the member, and with it, in pairs of random order.

    So what drifts from call to call drifts alike on both sides. Raises `Refused` for more numbers
    than fit into memory.
    """
    generators = _generators(seed)
    coins = next(generators).integers(0, 2, count).astype(bool)
    first = function.release(False, next(generators))
    if count * len(first) > MOST_NUMBERS:
        raise Refused(
            f"{count} releases of {len(first):,} numbers each do not fit into memory; expected at "
            f"most {MOST_NUMBERS:,} numbers of each neighbour: release some of them, or fewer times"
        )
    observed = np.empty((2, count, len(first)))
    for number, coin in enumerate(coins):
        for member in (bool(coin), not coin):
            released = function.release(member, next(generators))
            if len(released) != len(first):
                raise Refused(
                    f"{function.name} returned {len(released)} numbers after {len(first)} before; "
                    "expected as many each time: pad with nan what is missing"
                )
            observed[int(member), number] = released
    return observed[0], observed[1]


def _affordable(function: ReleasedFunction) -> int:
    """Releases of either neighbour that take about a minute in all, and fit into memory."""
    numbers = len(function.release(False, np.random.default_rng()))
    began = time.perf_counter()
    observe(function, 20)
    each = (time.perf_counter() - began) / 20
    affordable = min(_SECONDS / each, _MOST, _MOST_NUMBERS / numbers)
    return int(max(affordable, _FEWEST))


def _generators(seed: int | None) -> Iterator[np.random.Generator]:
    """Generators of which no two share a seed; without `seed`, each of the system's randomness."""
    number = 0
    while True:
        yield np.random.default_rng(None if seed is None else [seed, number])
        number += 1
