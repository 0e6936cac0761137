"""The power of a test by one run: how likely its guesses refute a claim that is false.

It is known before the run, for canaries that leave each other alone and are told apart as well as a
trade-off curve allows at all. No run's canaries do better, and most do worse.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accounting.empirical.one_run import Guesses, guess
from accounting.empirical.one_run_by_tradeoff import curve_refuted
from accounting.empirical.one_run_tests import PARTS
from accounting.empirical.tradeoff import TradeoffCurve

_TRIALS = 400
_MOST_CANARIES = 100_000
_GRID = np.unique(np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 4000), np.linspace(0, 1, 4000)]))
"""Between these points f hardly bends, whose every value takes all points of a profile."""


def refuting_guesses(
    canaries: int, curve: TradeoffCurve, level: float, statistics: int
) -> list[tuple[int, int]]:
    """How many guesses are made, and how many right ones refute `curve`, for each part of them.

    As `accounting.empirical.one_run_tests` tests so many `statistics`, at a `level` over all tests.
    Parts whose guesses cannot refute, all of them right, are left out.
    """
    each = level / (statistics * len(PARTS))
    made = [max(1, canaries // part) for part in PARTS]
    least = [_least_refuting(canaries, count, curve, each) for count in made]
    return [(count, right) for count, right in zip(made, least, strict=True) if right <= count]


def fewest_refuting(curve: TradeoffCurve, level: float, statistics: int) -> int | None:
    """The fewest canaries that can refute `curve`, all guesses being right; None above 100,000."""
    low, high = 0, 1
    while not refuting_guesses(high, curve, level, statistics):
        if high >= _MOST_CANARIES:
            return None
        low, high = high, 2 * high
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        refuted = bool(refuting_guesses(middle, curve, level, statistics))
        low, high = (low, middle) if refuted else (middle, high)
    return high


def _least_refuting(canaries: int, made: int, curve: TradeoffCurve, level: float) -> int:
    """The least number of right guesses, of so many `made`, that refute `curve`; else one more."""
    low, high = 0, made + 1
    while high - low > 1:
        middle = (low + high) // 2
        refuted = curve_refuted(Guesses(canaries, made, middle), curve, level)
        low, high = (low, middle) if refuted else (middle, high)
    return high


def power(
    canaries: int,
    refuting: Sequence[tuple[int, int]],
    curve: TradeoffCurve,
    rng: np.random.Generator,
) -> float:
    """The share of 400 simulated runs that are refuted, whose true curve is `curve`, f.

    The best test of each canary has a p-value, uniform where the canary is not in. Where it is, one
    below a has probability 1 - f(a), so that it is f(1 - u) of a uniform u, as f is its own inverse
    (Dong, Roth & Su 2022, definitions 2.1 and 2.3). The canary's score is minus that.
    """
    refuted, p_values = 0, curve.reflected(_GRID)
    for _ in range(_TRIALS if refuting else 0):
        coins = rng.random(canaries) < 0.5
        uniform = rng.random(canaries)
        scores = -np.where(coins, np.interp(uniform, _GRID, p_values), uniform)
        refuted += any(guess(scores, coins, made).right >= least for made, least in refuting)
    return refuted / _TRIALS
