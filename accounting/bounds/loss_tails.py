"""Tail sums of a privacy loss distribution, computed once for all values of delta.

dp-accounting sums the tail again for each delta, one term at a time. Here the same sums are
computed once, as far as needed, and looked up. Terms are added in the same order, so the sums equal
the library's to the last bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from accounting.bounds.library import pld_pmf

_NEARLY = 1e-9
"""Upper bound on the difference between numpy's logarithm and the C library's, which decides."""
_BLOCK = 4096
_LEAST_LOSS = -700.0
"""Losses below this value would overflow exp(-loss); epsilon is never negative."""


class LossTails:
    """Tail sums of both directions of dp-accounting's `distribution`, for epsilon at any delta."""

    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution
        directions = [distribution._pmf_remove]
        if not distribution._symmetric:
            directions.append(distribution._pmf_add)
        dense = all(type(each) is pld_pmf.DensePLDPmf for each in directions)
        self._tails = [_Tail(each) for each in directions] if dense else []

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon at `delta`, equal to dp-accounting's to the last bit."""
        known = [tail.epsilon(delta) for tail in self._tails]
        if not known or None in known:
            return float(self._distribution.get_epsilon_for_delta(delta))
        return float(max(each for each in known if each is not None))


class _Tail:
    """Tail probabilities of the privacy losses in one direction, under either neighbour."""

    def __init__(self, pmf: pld_pmf.DensePLDPmf) -> None:
        self._probabilities = np.flip(pmf._probs)
        self._step = pmf._discretization
        self._largest = (pmf._lower_loss + len(self._probabilities) - 1) * self._step
        self._losses = np.zeros(0)
        self._upper = np.array([pmf._infinity_mass], np.float64)  # mass of losses above each place
        self._lower = np.zeros(1)

    def epsilon(self, delta: float) -> float | None:
        """Returns the smallest epsilon at `delta`; None if the table's range is too small."""
        if self._upper[0] > delta:
            return math.inf
        start = 0
        while True:
            place = self._vanishing(delta, start)
            if place is not None:
                return float(max(0, self._losses[place]))
            place = self._crossing(delta, start)
            start = len(self._losses)
            if place is None and start == len(self._probabilities):
                place = start
            if place is not None:
                upper, lower = self._upper[place], self._lower[place]
                return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)
            if not self._extend():
                return None

    def _vanishing(self, delta: float, start: int) -> int | None:
        """Returns the first index whose tail has mass `delta`, but none under the other neighbour.

        The tail of an index has all losses from that of the index upwards; "mass `delta`" is at
        least `delta`, and 0.0 in float64 is no mass. The index is at least `start`; None if no
        tabulated loss meets the condition.
        """
        if self._lower[start] > 0.0:
            return None
        reached = (self._lower[start + 1 :] == 0.0) & (self._upper[start + 1 :] >= delta)
        return start + int(reached.argmax()) if reached.any() else None

    def _crossing(self, delta: float, start: int) -> int | None:
        """Returns the first index, from `start`, with log((u - `delta`) / l) at least the loss.

        u > `delta` and l > 0 are the masses of larger losses under the two neighbours. None if no
        tabulated loss meets the condition.
        """
        upper, lower, losses = self._upper[start:-1], self._lower[start:-1], self._losses[start:]
        with np.errstate(all="ignore"):
            nearly = np.log((upper - delta) / lower) >= losses - _NEARLY
        for place in np.flatnonzero(nearly & (upper > delta) & (lower > 0)):
            if math.log((upper[place] - delta) / lower[place]) >= losses[place]:
                return start + int(place)
        return None

    def _extend(self) -> bool:
        """Doubles the number of tabulated losses; returns False if there are no further losses."""
        known = len(self._losses)
        more = min(max(known, _BLOCK), len(self._probabilities) - known)
        before = self._losses[-1] - self._step if known else self._largest
        losses = np.add.accumulate(np.r_[before, np.full(more - 1, -self._step)])
        losses = losses[losses >= _LEAST_LOSS]
        probabilities = self._probabilities[known : known + len(losses)]
        ratios = np.fromiter(map(math.exp, (-losses).tolist()), np.float64, len(losses))
        upper = np.add.accumulate(np.r_[self._upper[-1], probabilities])
        lower = np.add.accumulate(np.r_[self._lower[-1], ratios * probabilities])
        self._losses = np.concatenate((self._losses, losses))
        self._upper = np.concatenate((self._upper[:-1], upper))
        self._lower = np.concatenate((self._lower[:-1], lower))
        return len(losses) > 0
