"""Judges another pipeline's claim by the canaries that took part in it.

The hypothesis is that the pipeline's releases, all together, are (epsilon, delta)-private about
each canary, under the neighbouring relation that the folder declares. Coins are fair, independent
of each other and of all else, and were drawn before: how many of them can be guessed from what was
released is then bounded (`accounting.empirical`), whatever the pipeline does with its clients and
whatever canaries do to each other. Scores look at no coin, and numbers of guesses are fixed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting.empirical.one_run_tests import one_run_tests
from accounting.empirical.one_shot import Bell, epsilon_between
from accounting.empirical.power import fewest_refuting, refuting_guesses
from accounting.empirical.tradeoff import ClaimedCurve
from accounting.empirical.verdicts import REFUTED_BELOW
from privfed.auditing.elsewhere.claim import PipelineClaim, gaussian_points
from privfed.auditing.elsewhere.judgement import Judgement
from privfed.auditing.elsewhere.models import model_files, models
from privfed.auditing.elsewhere.products import cosines
from privfed.canary.folder import Folder
from privfed.canary.layouts import Numbers

_FEWEST = 5
"""Canaries of either kind (heads or tails) below which nothing is estimated."""
_HALVINGS, _LARGEST = 9, 25.0


def judge_releases(
    folder: Folder, releases: Path, claim: PipelineClaim, confidence: float
) -> Judgement:
    """Judge a `claim` by the models in `releases`.

    Raises `Broken` where the canaries' folder was changed since it was made, and `Refused` for
    models that do not fit them.
    """
    declared = folder.manifest()
    folder.check_commitments()
    coins, paths = folder.coins(), model_files(releases)
    measured = cosines(folder.directions(), models(paths, declared.dimension))
    statistics = measured.statistics()
    (epsilon, delta), *_ = claim.points
    tests = one_run_tests(statistics, coins, claim.points, confidence)
    estimates = {name: _estimate(scores, coins, delta) for name, scores in statistics.items()}
    every, final = tests.bounds.get("iterates"), tests.bounds["final"]
    return Judgement(
        canaries=len(coins),
        heads=int(coins.sum()),
        relation=declared.relation,
        releases=len(measured.by_release),
        simulated=declared.simulated,
        confidence=confidence,
        epsilon_claimed=epsilon,
        delta=delta,
        claimed_by=claim.by,
        gaussian=claim.gaussian,
        epsilon_estimate_all_iterates=estimates.get("iterates"),
        epsilon_estimate_final=estimates["final"],
        epsilon_lower_bound=every.any_curve if every else None,
        epsilon_lower_bound_final=final.any_curve,
        epsilon_lower_bound_gaussian=every.if_gaussian if every else None,
        epsilon_lower_bound_gaussian_final=final.if_gaussian,
        epsilon_lower_bound_most=tests.most.any_curve,
        epsilon_lower_bound_gaussian_most=tests.most.if_gaussian,
        canaries_needed=fewest_refuting(ClaimedCurve(claim.points), REFUTED_BELOW, len(statistics)),
        epsilon_refutable=refutable(len(coins), len(statistics), delta, claim.gaussian),
        p_value=tests.p_value,
    )


@cache
def refutable(canaries: int, statistics: int, delta: float, gaussian: bool) -> float | None:
    """The largest epsilon at `delta` that so many canaries refute if all of them betray themselves.

    None where they refute no claim: with a probability of delta, a pipeline that is (epsilon,
    delta)-private and no better may show all coins.
    """

    def refuted(epsilon: float) -> bool:
        claim = epsilon, delta
        curve = ClaimedCurve(gaussian_points(claim) if gaussian else [claim])
        return bool(refuting_guesses(canaries, curve, REFUTED_BELOW, statistics))

    low, high = 0.0, _LARGEST
    if not refuted(low):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _estimate(scores: Numbers, coins: NDArray[np.bool_], delta: float) -> float | None:
    """Epsilon between Gaussians fitted to the scores of either kind; None for too few of one.

    As Andrew et al. 2024, section 3, but with one deviation for both, that of the noise: two that
    are fitted apart differ by chance, and of a hundred canaries this alone says some epsilon of 2.
    """
    out, into = scores[~coins], scores[coins]
    if min(len(out), len(into)) < _FEWEST:
        return None
    deviation = float(np.sqrt((out.var(ddof=1) + into.var(ddof=1)) / 2))
    null, present = (Bell(float(side.mean()), deviation) for side in (out, into))
    return epsilon_between(null, present, delta)
