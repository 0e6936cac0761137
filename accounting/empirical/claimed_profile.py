"""A privacy profile that is claimed: points (epsilon, delta), all of which hold at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from accounting.empirical.two_sample import Claim
from accounting.errors import AccountingError
from accounting.events import Spending
from accounting.guarantee import TIGHTEST, guarantee

_LEAST = 1e-9
"""The smallest of the deltas, over the ledger's: guesses that are nearly all right are as rare."""
_POINTS = 60
"""How many deltas up to a tenth: so dense that of a curve between them nothing is lost."""
_LARGE = np.arange(0.15, 1.0, 0.05)


def claimed_profile(
    spending: Spending, delta: float, accountant: str = TIGHTEST
) -> Iterator[Claim]:
    """Points of the profile of `spending`: at `delta`, then from small deltas to large ones.

    They are those that `accountant` claims: a tighter one claims more. A delta at which it has no
    finite epsilon is left out.
    """
    deltas = (delta, *np.geomspace(_LEAST * delta, 0.1, _POINTS).tolist(), *_LARGE.tolist())
    yield from points_of(lambda at: guarantee(spending, at, accountant).epsilon, deltas)


def points_of(profile: Callable[[float], float], deltas: Iterable[float]) -> Iterator[Claim]:
    """Points of `profile`, epsilon by delta, at `deltas`, but for those where it claims nothing.

    There epsilon is infinite, or no accountant knows it.
    """
    for at in deltas:
        try:
            epsilon = profile(at)
        except AccountingError:
            continue
        if epsilon < math.inf:
            yield epsilon, at
