"""A lower bound on epsilon from one run, by guessing the inclusion of canaries.

Each of m canaries is included in the population independently with probability 1/2. From the
release of the run, r of the inclusion bits are guessed, with r fixed in advance, and v guesses are
right. If the run is (epsilon, delta)-DP with respect to one canary, then the probability of at
least v right guesses is at most

    P[Bin(r, q) >= v] + 2 m delta max_i P[v > Bin(r, q) >= v - i] / i,      q = 1 / (1 + e^-epsilon)

with i from 1 to m. Source: Steinke, Nasr & Jagielski 2023, "Privacy
auditing with one (1) training run", Theorem 5.2. The bound holds for any interaction between
canaries, and is loose: refuting a claim of epsilon takes about e^epsilon right guesses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from accounting.errors import Unaccountable

_LARGEST = 50.0


@dataclass(frozen=True)
class Guesses:
    """Guesses of canaries' inclusion bits.

    Of `canaries` bits, `made` were guessed, and `right` of these guesses were correct.
    """

    canaries: int
    made: int
    right: int

    def p_value(self, epsilon: float, delta: float) -> float:
        """Returns a bound on the probability of this many right guesses under (epsilon, delta)-DP.

        >>> round(Guesses(100, 20, 20).p_value(0.0, 0.0) * 2**20, 6)
        1.0
        """
        from scipy.stats import binom  # imported here, since plans without canaries do not need it

        rate = 1 / (1 + math.exp(-epsilon))
        beta = float(binom.sf(self.right - 1, self.made, rate))
        if not delta or not self.right:
            return min(beta, 1.0)
        steps = np.arange(1, min(self.right, self.canaries) + 1)  # beyond, v - i is negative
        between = binom.sf(self.right - 1 - steps, self.made, rate) - beta
        return min(1.0, beta + 2 * self.canaries * delta * float((between / steps).max()))

    def epsilon_lower(self, delta: float, confidence: float) -> float:
        """Returns a lower bound on epsilon at `confidence`: at most 50; 0 if nothing is refuted."""
        miss = 1 - confidence

        def above(epsilon: float) -> float:
            return self.p_value(epsilon, delta) - miss

        if above(0.0) >= 0:
            return 0.0
        if above(_LARGEST) < 0:
            return _LARGEST
        return float(brentq(above, 0.0, _LARGEST, xtol=1e-9))


def guess(scores: NDArray[np.float64], inclusion: NDArray[np.bool_], made: int) -> Guesses:
    """Guesses `made` of the inclusion bits: included at the highest scores, excluded at the lowest.

    Args:
      scores: scores of the canaries, shape [m].
      inclusion: inclusion bits, shape [m].
      made: number of guesses, to be fixed before the scores are seen.

    Raises:
      Unaccountable: if `made` is not between 1 and m.

    >>> guess(np.array([0.9, 0.1, 0.8, 0.2]), np.array([True, False, False, True]), 2)
    Guesses(canaries=4, made=2, right=2)
    """
    if not 0 < made <= len(inclusion):
        count = len(inclusion)
        raise Unaccountable(
            f"the number of guesses is {made}, but there are {count} canaries; expected 1 to "
            f"{count} guesses"
        )
    return Guesses(len(inclusion), made, right_guesses(scores, inclusion, [made])[0])


def right_guesses(
    scores: NDArray[np.float64], inclusion: NDArray[np.bool_], made: Iterable[int]
) -> list[int]:
    """Returns the number of right guesses by `guess` for each number of guesses in `made`."""
    ranked = inclusion[np.argsort(scores, kind="stable")]
    return [
        int(ranked[len(ranked) - (each + 1) // 2 :].sum()) + int((~ranked[: each // 2]).sum())
        for each in made
    ]
