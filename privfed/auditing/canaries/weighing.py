"""Holds what a run's canaries recorded against its claim: tests, bounds and estimates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accounting.empirical.one_run_tests import one_run_tests
from accounting.empirical.one_shot import Bell, epsilon_between, estimate
from accounting.empirical.two_sample import Claim, judge
from accounting.events import Event
from privfed.auditing.canaries.evidence import Evidence
from privfed.auditing.canaries.log import CanaryRecord
from privfed.auditing.canaries.scores import Scale, likelihood_ratios

Numbers = NDArray[np.float64]
_KNOWN_NULL = 1000
"""The dimension from which on a random direction's cosine is Gaussian, to within what is fitted."""
_FEWEST = 5
"""Canaries of either kind (entered or not) below which nothing is said."""
_FEWEST_OF_HALVES = 20
"""The same where they are split in two halves."""


def weigh(
    record: CanaryRecord,
    event: Event,
    scale: Scale,
    claims: Sequence[Claim],
    confidence: float,
) -> Evidence | None:
    """Hold what canaries recorded against `claims`, points of one privacy profile, the run's first.

    None without any, or for too few canaries of either kind.
    """
    coins = record.coins
    if not claims or not len(record.rounds) or min(coins.sum(), (~coins).sum()) < _FEWEST:
        return None
    epsilon, delta = claims[0]
    ratio = likelihood_ratios(record, event, scale)
    largest = (record.products / record.lengths[:, None]).max(0)
    statistics = {"iterates": ratio}
    if record.final is not None:
        statistics["final"] = record.final
    tests = one_run_tests(statistics, coins, claims, confidence)
    iterates, final = tests.bounds["iterates"], tests.bounds.get("final")
    return Evidence(
        canaries=len(coins),
        entered=int(coins.sum()),
        confidence=confidence,
        epsilon_claimed=epsilon,
        delta=delta,
        epsilon_estimate_all_iterates=estimate(largest[~coins], largest[coins], delta),
        epsilon_estimate_likelihood=estimate(ratio[~coins], ratio[coins], delta),
        epsilon_estimate_final=_final_estimate(record, delta),
        epsilon_lower_bound=iterates.any_curve,
        epsilon_lower_bound_final=final.any_curve if final else None,
        epsilon_lower_bound_most=tests.most.any_curve,
        epsilon_lower_bound_if_gaussian=iterates.if_gaussian,
        epsilon_lower_bound_final_if_gaussian=final.if_gaussian if final else None,
        epsilon_lower_bound_most_if_gaussian=tests.most.if_gaussian,
        epsilon_lower_bound_split=_split_bound(ratio, coins, delta, confidence),
        p_value=tests.p_value,
    )


def _final_estimate(record: CanaryRecord, delta: float) -> float | None:
    """Epsilon by cosines with the final model, whose null is known in high dimension."""
    if record.final is None:
        return None
    null = Bell(0.0, record.dimension**-0.5)
    if record.dimension < _KNOWN_NULL:
        null = Bell.fitted(record.final[~record.coins])
    return epsilon_between(null, Bell.fitted(record.final[record.coins]), delta)


def _split_bound(
    scores: Numbers, coins: NDArray[np.bool_], delta: float, confidence: float
) -> float | None:
    """A lower bound on epsilon, its threshold chosen on one half of the canaries.

    The other half is counted. It holds if canaries leave each other alone.
    """
    out, into = scores[~coins], scores[coins]
    count = min(len(out), len(into))
    if count < _FEWEST_OF_HALVES:
        return None
    return judge(out[:count], into[:count], delta, confidence, [(0.0, delta)]).epsilon_lower
