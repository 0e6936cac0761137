"""The privacy profile that a ledger claims: points (epsilon, delta), all of which hold at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from accounting.empirical.two_sample import Claim
from accounting.errors import AccountingError
from accounting.events import Spending
from accounting.guarantee import guarantee

_LEAST = 1e-9
"""The smallest of the deltas, over the ledger's: guesses that are nearly all right are as rare."""
_POINTS = 60
"""How many deltas up to a tenth: so dense that of a curve between them nothing is lost."""
_LARGE = np.arange(0.15, 1.0, 0.05)


def claimed_profile(spending: Spending, delta: float) -> Iterator[Claim]:
    """Points of the profile of `spending`: at `delta`, then from small deltas to large ones.

    A delta at which no accountant has a finite epsilon is left out.
    """
    for at in (delta, *np.geomspace(_LEAST * delta, 0.1, _POINTS).tolist(), *_LARGE.tolist()):
        try:
            epsilon = guarantee(spending, at).epsilon
        except AccountingError:
            continue
        if epsilon < math.inf:
            yield epsilon, at
