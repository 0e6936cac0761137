"""Power of a one-run test: the probability that its guesses refute a false claim.

The power is computed before the run, for canaries that do not interact and are as distinguishable
as a trade-off function allows. The canaries of a real run are at most as distinguishable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accounting.empirical.one_run import Guesses, right_guesses
from accounting.empirical.one_run_by_tradeoff import curve_refuted
from accounting.empirical.one_run_tests import PARTS
from accounting.empirical.tradeoff import TradeoffCurve

_TRIALS = 400
_MOST_CANARIES = 100_000
_GRID = np.unique(np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 4000), np.linspace(0, 1, 4000)]))
"""Grid on which f is evaluated; f is nearly linear between these
points, and each value is expensive."""


def refuting_guesses(
    canaries: int, curve: TradeoffCurve, level: float, statistics: int
) -> list[tuple[int, int]]:
    """Returns pairs (guesses, least right guesses that refute `curve`), one per tested fraction.

    The test is that of `accounting.empirical.one_run_tests`. Fractions of guessed bits that cannot
    refute `curve`, even if all guesses are right, are left out.

    Args:
      canaries: number of canaries.
      curve: the trade-off function under test.
      level: error probability over all tests.
      statistics: number of statistics.
    """
    each = level / (statistics * len(PARTS))
    made = [max(1, canaries // part) for part in PARTS]
    least = [_least_refuting(canaries, count, curve, each) for count in made]
    return [(count, right) for count, right in zip(made, least, strict=True) if right <= count]


def fewest_refuting(curve: TradeoffCurve, level: float, statistics: int) -> int | None:
    """Returns a number of canaries that can refute `curve` if all guesses are right.

    The number exceeds the least one by 1 % at most. Returns None if 2^17 canaries do not suffice.
    """
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
    """Returns the least number of right guesses that refutes `curve`; `made` + 1 if none does."""
    low, high = 0, made + 1
    while high - low > 1:
        middle = (low + high) // 2
        refuted = curve_refuted(Guesses(canaries, made, middle), curve, level)
        low, high = (low, middle) if refuted else (middle, high)
    return high


def power(
    canaries: int,
    levels: Sequence[Sequence[tuple[int, int]]],
    curve: TradeoffCurve,
    rng: np.random.Generator,
) -> list[float]:
    """Returns the fractions refuted of 400 simulated runs whose true trade-off function is `curve`.

    The best test of each canary has a p-value, which is uniform if the canary is excluded. If the
    canary is included, a p-value below a has probability 1 - f(a), so the p-value is f(1 - u) of a
    uniform u, as f is its own inverse (Dong, Roth & Su 2022, definitions 2.1 and 2.3). The canary's
    score is minus the p-value.

    Args:
      canaries: number of canaries.
      levels: for each error probability, pairs (guesses, least right guesses that refute), from
        `refuting_guesses`.
      curve: the true trade-off function f.
      rng: source of randomness.

    Returns:
      The fraction at each of `levels`, of the same simulated runs.
    """
    refuted, p_values = np.zeros(len(levels)), curve.reflected(_GRID)
    counts = sorted({made for refuting in levels for made, _ in refuting})
    for _ in range(_TRIALS if counts else 0):
        inclusion = rng.random(canaries) < 0.5
        p = rng.random(canaries)
        p[inclusion] = np.interp(p[inclusion], _GRID, p_values)
        right = dict(zip(counts, right_guesses(-p, inclusion, counts), strict=True))
        refuted += [any(right[made] >= least for made, least in each) for each in levels]
    return [float(each) for each in refuted / _TRIALS]
