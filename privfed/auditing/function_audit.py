"""A test of a user's own function: do its releases satisfy its claimed privacy profile?

The function (`privfed.auditing.released_function`) is called thousands of times on either of two
neighbouring inputs. Scores are learned on one half of the releases to distinguish the inputs
(`accounting.empirical.release_scores`). The other half is tested against the claimed points of the
privacy profile (`accounting.empirical.two_sample`), as for a mechanism of privfed. The user chooses
the inputs: a refutation concerns the neighbours for which the function was written, and a test on
inputs that hardly differ reveals nothing.
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
    """Returns the event of one round of Gaussian noise, and the number of rounds.

    Args:
      noise_multiplier: standard deviation of the noise over the distance between neighbours' sums.
      rate: probability with which a client takes part; below 1 the cohorts are Poisson samples.
      rounds: number of rounds.

    Raises:
      Refused: if an argument is out of range.
    """
    if rate == 0:
        raise Refused("the sampling rate is 0, so no record takes part; expected a rate above 0")
    try:
        count, noise = natural_number(rounds, "rounds"), Gaussian(float(noise_multiplier))
        full = Event(noise, "full")
        return (full if rate == 1 else Event(PoissonSampled(rate, noise), "poisson")), count
    except Unaccountable as error:
        raise Refused(f"the claim of Gaussian noise: {public_text(error)}") from error


@dataclass(frozen=True)
class FunctionClaim:
    """Claimed `points` (epsilon, delta); `epsilon` is that at `delta`, infinite if no point is."""

    points: tuple[Claim, ...]
    epsilon: float
    delta: float

    @classmethod
    def at(cls, epsilon: float, delta: float) -> FunctionClaim:
        """Returns the claim of (epsilon, delta)-DP. Raises `Refused` for a number out of range."""
        if not (0 <= epsilon < math.inf and 0 <= delta < 1):
            raise Refused(
                f"the claim is epsilon = {epsilon:g} and delta = {delta:g}; expected a finite "
                "epsilon of 0 or more, and a delta of 0 or more and below 1"
            )
        return cls(((epsilon, delta),), epsilon, delta)

    @classmethod
    def of_profile(cls, profile: Callable[[float], float], delta: float) -> FunctionClaim:
        """Returns the claim of a whole privacy profile.

        Args:
          profile: epsilon as a function of delta.
          delta: delta of the stated epsilon.

        Raises:
          Refused: if the profile is infinite everywhere, or `delta` is not between 0 and 1.
        """
        _refuse_pure(delta)
        return cls._of_points(points_for_releases(profile, delta), delta)

    @classmethod
    def of_gaussian(
        cls, noise_multiplier: float, rate: float, rounds: int, delta: float
    ) -> FunctionClaim:
        """Returns the claim of `rounds` rounds of Gaussian noise on sums over Poisson samples.

        The relation is add/remove. The profile is that of the project's accountants
        (`accounting.guarantee`).

        Args:
          noise_multiplier: standard deviation of the noise over the distance between neighbours'
            sums.
          rate: probability with which the client takes part in a round.
          rounds: number of rounds.
          delta: delta of the stated epsilon.

        Raises:
          Refused: if an argument is out of range.
        """
        _refuse_pure(delta)
        event, count = gaussian_rounds(noise_multiplier, rate, rounds)
        return cls._of_points(claimed_points(event, count, delta), delta)

    @classmethod
    def _of_points(cls, points: Iterable[Claim], delta: float) -> FunctionClaim:
        """Returns the claim of `points`. Raises `Refused` if none of them is finite."""
        claimed = tuple(points)
        if not claimed:
            raise Refused(
                "the claimed profile is infinite at every delta, so there is nothing to test; "
                "claim a finite epsilon"
            )
        epsilon = next((epsilon for epsilon, at in claimed if at == delta), math.inf)
        return cls(claimed, epsilon, delta)


def _refuse_pure(delta: float) -> None:
    if not 0 < delta < 1:
        raise Refused(
            f"delta is {delta:g}, but a privacy profile is tested at a delta above 0 and below 1; "
            "choose such a delta, or claim an epsilon, which may have delta 0"
        )


def claim_of(
    function: ReleasedFunction,
    claimed_epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    rounds: int | None = None,
) -> FunctionClaim:
    """Returns the claim of the arguments; without one, that of `function.profile` at `delta`.

    Args:
      function: the function under test.
      claimed_epsilon: epsilon of a claim at `delta`.
      delta: delta of the claim.
      noise_multiplier: noise multiplier of a Gaussian claim.
      sampling_rate: sampling rate of a Gaussian claim, by default 1.
      rounds: rounds of a Gaussian claim, by default 1.

    Raises:
      Refused: if both an epsilon and a noise multiplier are given; if a rate or rounds are given
        without a noise multiplier; if `delta` is not given; if neither an epsilon nor a noise
        multiplier is given and `function` has no `profile`; or if an argument is out of range.
    """
    if noise_multiplier is None and (sampling_rate is not None or rounds is not None):
        raise Refused(
            "a sampling rate or a number of rounds is given, but has no meaning without a noise "
            "multiplier; give the noise multiplier too"
        )
    if claimed_epsilon is not None and noise_multiplier is not None:
        raise Refused(
            "both an epsilon and a noise multiplier are given, but a claim has only one of them; "
            "remove one"
        )
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
    raise _unstated(function, claimed_epsilon, noise_multiplier)


def _unstated(
    function: ReleasedFunction, claimed_epsilon: float | None, noise_multiplier: float | None
) -> Refused:
    """Returns a refusal that states what is missing: `delta`, or also every form of a claim."""
    advice = "give delta"
    if {claimed_epsilon, noise_multiplier, function.profile} == {None}:
        advice = "give delta with an epsilon or with a noise multiplier, or add a method "
        advice += "profile(delta) that returns epsilon"
    return Refused(f"no claim is stated for {function.name}; {advice}")


Numbers = NDArray[np.float64]
_SCORES: dict[str, Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]] = {
    "means": linear_scores,
    "spreads": quadratic_scores,
    "repetitions": repetition_scores,
}
_SECONDS, _FEWEST, _MOST, _MOST_NUMBERS = 60.0, 400, 100_000, 2**23
"""Approximate time limit in seconds, and limits on releases per neighbour and on all numbers."""


@dataclass(frozen=True)
class ScoreVerdict:
    """The verdict of the test of all releases by the score function named `score`."""

    score: str
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Returns the score's object in `privfed audit --function --json`."""
        return {
            "score": self.score,
            "epsilon_lower_bound": self.verdict.epsilon_lower,
            "p_value": self.verdict.p_value,
            "against": dict(zip(("epsilon", "delta"), self.verdict.claim, strict=True)),
        }


@dataclass(frozen=True)
class FunctionAudit(Verdicts):
    """The result of testing the function `name` against its `claim`, by each of several scores.

    For each neighbour, `releases` releases of `numbers` numbers were made. `aborted` is the
    fraction of releases with a non-finite number, first without the member and then with it.
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
        """The smallest of the scores' p-values, multiplied by their number."""
        return min(1.0, len(self.tested) * min(test.verdict.p_value for test in self.tested))

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed audit --function --json` prints."""
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
    """Returns the result of testing releases of `function` for both neighbours against `claim`.

    Args:
      function: the function under test.
      claim: its claim.
      releases: number of releases per neighbour; None: as many as take a minute or two and fit into
        memory, from 400 to 100,000.
      confidence: confidence of the lower bounds on epsilon.
      seed: makes the generators passed to the function repeatable; None: system randomness.

    Raises:
      Refused: if the function fails, or its releases are not arrays of numbers of a constant size
        that fit into memory, or `confidence` is not between 0 and 1.
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
    """Returns releases without the member, and with it; each pair is made in random order.

    Because of the random order, a drift over calls affects both sides alike.

    Args:
      function: the function under test.
      count: number of releases per neighbour.
      seed: seed of the generators; None: system randomness.

    Returns:
      Two arrays of shape `[count, k]`.

    Raises:
      Refused: if the function fails, or its releases do not fit into memory or differ in size.
    """
    generators = _generators(seed)
    inclusion = next(generators).integers(0, 2, count).astype(bool)
    first = function.release(False, next(generators))
    if count * len(first) > MOST_NUMBERS:
        raise Refused(
            f"{count} releases of {len(first):,} numbers each do not fit into memory; expected at "
            f"most {MOST_NUMBERS:,} per neighbour: return fewer numbers, or use fewer releases"
        )
    observed = np.empty((2, count, len(first)))
    for number, included in enumerate(inclusion):
        for member in (bool(included), not included):
            released = function.release(member, next(generators))
            if len(released) != len(first):
                raise Refused(
                    f"{function.name} returned {len(released)} numbers, but {len(first)} in the "
                    "first release; return equally many numbers each time, for example padded with "
                    "nan"
                )
            observed[int(member), number] = released
    return observed[0], observed[1]


def _affordable(function: ReleasedFunction) -> int:
    """Returns the releases per neighbour that take about a minute and fit into memory, from 400."""
    numbers = len(function.release(False, np.random.default_rng()))
    began = time.perf_counter()
    observe(function, 20)
    each = (time.perf_counter() - began) / 20
    affordable = min(_SECONDS / each, _MOST, _MOST_NUMBERS / numbers)
    return int(max(affordable, _FEWEST))


def _generators(seed: int | None) -> Iterator[np.random.Generator]:
    """Yields, without end, generators with distinct seeds; for None, seeded by the system."""
    number = 0
    while True:
        yield np.random.default_rng(None if seed is None else [seed, number])
        number += 1
