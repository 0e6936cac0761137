"""The privacy profile that a ledger claims: points (epsilon, delta), all of which hold at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from accounting.empirical.two_sample import Claim
from accounting.errors import AccountingError
from accounting.events import Spending
from accounting.guarantee import guarantee

_PARTS = (1.0, 1e-3, 1e-6, 1e-9)
"""At smaller deltas more is claimed of rare events, as it is that many guesses are all right."""
_LARGE = (*np.geomspace(1e-6, 0.1, 16).tolist(), *np.arange(0.15, 1.0, 0.05).tolist())


def claimed_profile(spending: Spending, delta: float) -> Iterator[Claim]:
    """Points of the profile of `spending`: at `delta`, at smaller ones, and at larger ones.

    A delta at which no accountant has a finite epsilon is left out.
    """
    smaller = [delta * part for part in _PARTS]
    for at in (*smaller, *(each for each in _LARGE if each > delta)):
        try:
            epsilon = guarantee(spending, at).epsilon
        except AccountingError:
            continue
        if epsilon < math.inf:
            yield epsilon, at
