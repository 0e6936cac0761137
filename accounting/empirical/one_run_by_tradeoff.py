"""A test of a trade-off function by guesses of the canaries' inclusion in one run.

Each of m canaries is included in the population independently with probability 1/2, and k of the
inclusion bits are guessed, k fixed in advance. Hypothesis: the run is f-DP with respect to each
canary, whatever the others are. Then v guesses or more are right with a probability above p only if
r + h <= k/m after

    r, h = p v/m, p (k - v)/m;   for i = v - 1, ..., 0:
        h' = max(h, f(1 - r));   r = min(1, r + i/(k - i) (h' - h));   h = h'

Source: Mahloujifar, Melis & Chaudhuri 2025, "Auditing f-differential privacy in one run" (ICML),
section 4. Like the test of `accounting.empirical.one_run`, which uses one point (epsilon, delta) of
f only, it holds for any interaction between canaries. Applied to the curve of a ledger's profile it
refutes the ledger's claim. Applied to a *family* of curves it gives a conditional bound: "if the
run's curve is Gaussian, then epsilon is at least ...".

If a value of p is refuted, so are all larger values, and if a curve is refuted, so are all curves
above it. Let h_j = max(h_(j-1), f(1 - r_(j-1))) and c_j = i/(k - i), which decreases from step to
step. Summation by parts gives

    r_J = p k/(m (k - v + 1)) + c_J h_J + sum_(0 < j < J) (c_j - c_(j+1)) h_j

with no negative coefficient: by induction every r and h grows with p, and with f.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from accounting.empirical.one_run import Guesses
from accounting.empirical.tradeoff import GaussianCurve, TradeoffCurve, gaussian_reflected

Numbers = NDArray[np.float64]
_LARGEST_MU = 100.0
_LEAST_P = 1e-40
_STEPS, _PASSES = 33, 4
"""Number of points evaluated at once (`_STEPS`), and number of passes of a search (`_PASSES`)."""


def curve_p_value(guesses: Guesses, curve: TradeoffCurve) -> float:
    """Bounds the probability of at least this many right guesses if a run is f-DP, f = `curve`.

    The returned bound is at least 1e-40.

    >>> from accounting.empirical.tradeoff import ClaimedCurve
    >>> round(curve_p_value(Guesses(1, 1, 1), ClaimedCurve([(1.0, 0.0)])), 3)  # e / (1 + e)
    0.731
    """
    low, high = _LEAST_P, 1.0
    for _ in range(_PASSES):
        levels = np.geomspace(low, high, _STEPS)
        refuted = _refuted(guesses, curve.reflected, levels)
        if not refuted.any():
            return high
        first = int(np.argmax(refuted))
        low, high = float(levels[max(first - 1, 0)]), float(levels[first])
    return high


def curve_refuted(guesses: Guesses, curve: TradeoffCurve, level: float) -> bool:
    """Whether `guesses` refute that a run is f-DP with f = `curve`.

    `level` bounds the probability that a true claim is refuted.
    """
    return bool(_refuted(guesses, curve.reflected, np.array([level]))[0])


def gaussian_lower(guesses: Guesses, confidence: float) -> GaussianCurve:
    """Returns the least private of the Gaussian curves that are refuted at `confidence`.

    All more private Gaussian curves are refuted as well: if the run's trade-off function is
    Gaussian, neighbours are more distinguishable than under the returned curve. Its mu is at most
    100, and 0 if no curve is refuted.
    """
    low, high, miss = 0.0, _LARGEST_MU, 1 - confidence
    for _ in range(_PASSES):
        mu = np.linspace(low, high, _STEPS)
        refuted = _refuted(guesses, partial(gaussian_reflected, mu=mu), np.full(_STEPS, miss))
        last = int(refuted.sum()) - 1
        if last < 0:
            return GaussianCurve(0.0)
        low, high = float(mu[last]), float(mu[min(last + 1, _STEPS - 1)])
    return GaussianCurve(low)


def _refuted(
    guesses: Guesses, reflected: Callable[[Numbers], Numbers], levels: Numbers
) -> NDArray[np.bool_]:
    """Whether the curve f is refuted at each of the error probabilities `levels` `[s]`.

    `reflected` computes f(1 - x) `[s]`.
    """
    m, k, v = guesses.canaries, guesses.made, guesses.right
    right, wrong = levels * v / m, levels * (k - v) / m
    for i in range(v - 1, -1, -1):
        more = np.maximum(wrong, reflected(right))
        if (more == wrong).all() or (right + wrong > k / m).all():
            break
        right, wrong = np.minimum(1.0, right + i / (k - i) * (more - wrong)), more
    return np.asarray(right + wrong > k / m)
