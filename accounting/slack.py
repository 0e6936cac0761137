"""Slack, which is paid in delta beside the accountant: visible aborts, and nearly exact noise.

A mechanism M' that differs from an accounted one M by a total variation of at most s on either
neighbour has P[M'(D) in S] <= e^eps P[M'(D') in S] + delta + (1 + e^eps) s. A run of T events adds
their s. The total delta is stated, so the accountant receives what remains of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_NEGLIGIBLE = 1e-9
"""The share of delta that is set aside at once: it decides most cases with one accounting."""
_TRIES = 60


def with_slack(
    epsilon: Callable[[float], float | None], delta: float, slack: float
) -> float | None:
    """A bound e with epsilon(delta - (1 + exp(e)) slack) <= e; infinity where none was found.

    `epsilon(delta)` falls with delta; None stays None. Each try starts at what the last one asked
    for, so that it comes to the least such e from below, and returns only what was verified.
    """
    if slack <= 0.0:
        return epsilon(delta)
    claim = epsilon(delta * (1 - _NEGLIGIBLE))
    if claim is None or price_of_slack(claim, slack) <= delta * _NEGLIGIBLE:
        return claim
    for _ in range(_TRIES):
        if price_of_slack(claim, slack) >= delta:
            return math.inf
        needed = epsilon(delta - price_of_slack(claim, slack))
        if needed is None or needed <= claim:
            return None if needed is None else claim
        claim = needed * (1 + 1e-6) + 1e-12
    return math.inf


def price_of_slack(epsilon: float, slack: float) -> float:
    """What `slack` takes of delta at `epsilon`; infinite where that is too large for a float."""
    if not slack:
        return 0.0
    return (1 + math.exp(epsilon)) * slack if epsilon < 700 else math.inf
