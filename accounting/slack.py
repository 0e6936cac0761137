"""Slack, charged to delta in addition to the accountant: visible aborts, nearly exact noise.

A mechanism M' that differs from an accounted one M by a total variation distance of at most s on
either neighbour has P[M'(D) in S] <= e^eps P[M'(D') in S] + delta + (1 + e^eps) s. Over T events
the s add up. The total delta is stated, so the accountant receives the remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_NEGLIGIBLE = 1e-9
"""Fraction of delta that is first reserved for slack; for most cases, one accounting suffices."""
_TRIES = 60


def with_slack(
    epsilon: Callable[[float], float | None], delta: float, slack: float
) -> float | None:
    """Returns a bound e with epsilon(delta - (1 + exp(e)) slack) <= e; infinity if none is found.

    The search computes, from a candidate e, the epsilon that its slack requires, which is the next
    candidate. It approaches the least such e from below; only verified bounds are returned. Returns
    None if `epsilon` does.

    Args:
      epsilon: the accountant's epsilon as a decreasing function of delta; None if it has no bound.
      delta: total delta of the guarantee.
      slack: sum of the events' slack.
    """
    if slack <= 0.0:
        return epsilon(delta)
    claim = epsilon(delta * (1 - _NEGLIGIBLE))
    if claim is None or cost_of_slack(claim, slack) <= delta * _NEGLIGIBLE:
        return claim
    for _ in range(_TRIES):
        if cost_of_slack(claim, slack) >= delta:
            return math.inf
        needed = epsilon(delta - cost_of_slack(claim, slack))
        if needed is None or needed <= claim:
            return None if needed is None else claim
        claim = needed * (1 + 1e-6) + 1e-12
    return math.inf


def cost_of_slack(epsilon: float, slack: float) -> float:
    """Returns (1 + exp(epsilon)) slack, which is charged to delta; infinite beyond floats."""
    if not slack:
        return 0.0
    return (1 + math.exp(epsilon)) * slack if epsilon < 700 else math.inf
