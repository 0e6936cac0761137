"""Holds what a run's canaries recorded against its claim: tests, bounds and estimates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accounting.empirical.one_run_tests import one_run_tests
from accounting.empirical.one_shot import Bell, epsilon_between, estimate
from accounting.empirical.two_sample import Claim, judge
from accounting.events import REPLACE_ONE, Event
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
    scale: Scale | None,
    claims: Sequence[Claim],
    confidence: float,
    slack: float = 0.0,
) -> Evidence | None:
    """Hold what canaries recorded against `claims`, points of one privacy profile, the run's first.

    All that happened had at most `slack` more probability than those allow. Where canaries were
    held against no release, there is no `scale`. None without any, or for too few canaries of
    either kind.
    """
    coins, statistics = record.coins, _statistics(record, event.relation, scale)
    if not claims or not statistics or min(coins.sum(), (~coins).sum()) < _FEWEST:
        return None
    epsilon, delta = claims[0]
    tests = one_run_tests(statistics, coins, claims, confidence)
    iterates, final = tests.bounds.get("iterates"), tests.bounds.get("final")
    (most, *_) = statistics.values()
    return Evidence(
        canaries=len(coins),
        entered=int(coins.sum()),
        relation=event.relation,
        confidence=confidence,
        epsilon_claimed=epsilon,
        delta=delta,
        epsilon_estimate_all_iterates=_estimate(_largest(record), coins, delta),
        epsilon_estimate_likelihood=_estimate(statistics.get("iterates"), coins, delta),
        epsilon_estimate_final=_final_estimate(record, event.relation, delta),
        epsilon_lower_bound=iterates.any_curve if iterates else None,
        epsilon_lower_bound_final=final.any_curve if final else None,
        epsilon_lower_bound_most=tests.most.any_curve,
        epsilon_lower_bound_if_gaussian=iterates.if_gaussian if iterates else None,
        epsilon_lower_bound_final_if_gaussian=final.if_gaussian if final else None,
        epsilon_lower_bound_most_if_gaussian=tests.most.if_gaussian,
        epsilon_lower_bound_split=_split_bound(most, coins, delta, confidence),
        p_value=min(1.0, tests.p_value + slack),
    )


def _statistics(record: CanaryRecord, relation: str, scale: Scale | None) -> dict[str, Numbers]:
    """What each adversary makes of every canary `[K]`, who sees most first."""
    statistics = {}
    if scale and len(record.rounds):
        statistics["iterates"] = likelihood_ratios(record, relation, scale)
    if record.final is not None:
        statistics["final"] = record.final
    return statistics


def _largest(record: CanaryRecord) -> Numbers | None:
    """Each canary's largest cosine with a release `[K]`; None where they were held against none."""
    if not len(record.rounds):
        return None
    return np.asarray((record.products / record.lengths[:, None]).max(0))


def _estimate(scores: Numbers | None, coins: NDArray[np.bool_], delta: float) -> float | None:
    """Epsilon between Gaussians fitted to the scores of canaries out, and in."""
    return None if scores is None else estimate(scores[~coins], scores[coins], delta)


def _final_estimate(record: CanaryRecord, relation: str, delta: float) -> float | None:
    """Epsilon by the final model: the null of cosines with it is known in high dimension.

    Under replace-one there is none: a canary with tails sends the opposite of its direction.
    """
    if record.final is None:
        return None
    null = Bell.fitted(record.final[~record.coins])
    if record.dimension >= _KNOWN_NULL and relation != REPLACE_ONE:
        null = Bell(0.0, record.dimension**-0.5)
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
