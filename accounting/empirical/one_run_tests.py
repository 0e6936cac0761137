"""All tests of a claim by guesses of canaries' inclusion, from the statistics of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting.empirical.one_run import Guesses, guess
from accounting.empirical.one_run_by_tradeoff import curve_p_value, gaussian_lower
from accounting.empirical.tradeoff import ClaimedCurve
from accounting.empirical.two_sample import Claim

PARTS = (10, 5, 2, 1)
"""Number of inclusion bits divided by the number of guesses, for each test: a tenth, a fifth, half
and all bits are guessed. The list is fixed, and the confidence is corrected for the number of
tests."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds on epsilon: `any_curve` holds for any trade-off function of the run.

    `if_gaussian` holds if that function is Gaussian.
    """

    any_curve: float
    if_gaussian: float


@dataclass(frozen=True)
class OneRunTests:
    """The `bounds` by each statistic, and `most`, the bounds if all guesses were right.

    `p_value` is the smallest p-value of the tests of the claims (one for each statistic and
    fraction of guessed bits), times the number of tests, but at most 1.
    """

    bounds: Mapping[str, Bounds]
    most: Bounds
    p_value: float


def one_run_tests(
    statistics: Mapping[str, NDArray[np.float64]],
    inclusion: NDArray[np.bool_],
    claims: Sequence[Claim],
    confidence: float,
) -> OneRunTests:
    """Returns the tests of a claim by the scores of canaries.

    All claims are tested together, as one trade-off function.

    Args:
      statistics: scores by statistic, each of shape [K]; higher if inclusion is more likely, and
        computed without the inclusion bits.
      inclusion: inclusion bits of the canaries, shape [K].
      claims: points (epsilon, delta) of one profile; lower bounds are at the delta of the first.
      confidence: confidence of the bounds.
    """
    delta, sure = claims[0][1], 1 - (1 - confidence) / len(PARTS)
    curve = ClaimedCurve(claims)
    p_values, bounds = [], {}
    for name, scores in statistics.items():
        guesses = [guess(scores, inclusion, max(1, len(inclusion) // part)) for part in PARTS]
        bounds[name] = _bounds(guesses, delta, sure)
        p_values += [curve_p_value(made, curve) for made in guesses]
    p_value = min(1.0, min(p_values) * len(p_values))
    return OneRunTests(bounds, most_from(len(inclusion), delta, confidence), p_value)


def most_from(canaries: int, delta: float, confidence: float) -> Bounds:
    """Returns the bounds on epsilon at `delta` if all guesses about `canaries` are right."""
    right = [max(1, canaries // part) for part in PARTS]
    sure = 1 - (1 - confidence) / len(PARTS)
    return _bounds([Guesses(canaries, made, made) for made in right], delta, sure)


def _bounds(guesses: Sequence[Guesses], delta: float, sure: float) -> Bounds:
    return Bounds(
        max(made.epsilon_lower(delta, sure) for made in guesses),
        max(gaussian_lower(made, sure).epsilon(delta) for made in guesses),
    )
