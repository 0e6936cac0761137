"""Judges another pipeline's claim by the canaries that took part in it.

The hypothesis is that the pipeline's releases, all together, are (epsilon, delta)-private about
each canary, under the neighbouring relation that the folder declares. Coins are fair, independent
of each other and of all else, and were drawn before: how many of them can be guessed from what was
released is then bounded (`accounting.empirical`), whatever the pipeline does with its clients and
whatever canaries do to each other. Scores look at no coin, and the number of guesses is fixed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting.empirical.one_run import Guesses, guess
from accounting.empirical.one_shot import estimate
from accounting.empirical.two_sample import REFUTED_BELOW, Claim
from privfed.auditing.elsewhere.judgement import Judgement
from privfed.auditing.elsewhere.models import model_files, models
from privfed.auditing.elsewhere.products import cosines
from privfed.canary.folder import Folder
from privfed.canary.layouts import Numbers

_FEWEST = 5
"""Canaries of either kind (heads or tails) below which nothing is estimated."""
_PARTS = (10, 2, 1)
"""A tenth, a half and all of the coins are guessed."""


def judge_releases(
    folder: Folder, releases: Path, claim: Claim, gaussian: bool, confidence: float
) -> Judgement:
    """Judge a `claim` of (epsilon, delta) by the models in the folder `releases`.

    `gaussian`: whoever claims says that the noise is Gaussian. Raises `Broken` where the canaries'
    folder was changed since it was made, and `Refused` for models that do not fit them.
    """
    declared = folder.manifest()
    folder.check_commitments()
    coins, paths = folder.coins(), model_files(releases)
    seen = cosines(folder.directions(), models(paths, declared.dimension))
    statistics = seen.statistics()
    epsilon, delta = claim
    sure = 1 - (1 - confidence) / len(_PARTS)
    p_values, bounds = [], {}
    for name, scores in statistics.items():
        guesses = [guess(scores, coins, max(1, len(coins) // part)) for part in _PARTS]
        bounds[name] = max(made.epsilon_lower(delta, sure) for made in guesses)
        p_values += [made.p_value(*claim) for made in guesses]
    all_right = Guesses(len(coins), len(coins), len(coins))
    estimates = {name: _estimate(scores, coins, delta) for name, scores in statistics.items()}
    return Judgement(
        canaries=len(coins),
        heads=int(coins.sum()),
        relation=declared.relation,
        releases=len(seen.by_release),
        simulated=declared.simulated,
        confidence=confidence,
        epsilon_claimed=epsilon,
        delta=delta,
        epsilon_estimate_all_iterates=estimates.get("iterates"),
        epsilon_estimate_final=estimates["final"],
        epsilon_lower_bound=bounds.get("iterates"),
        epsilon_lower_bound_final=bounds["final"],
        epsilon_lower_bound_gaussian=None,
        epsilon_lower_bound_gaussian_final=None,
        epsilon_lower_bound_most=all_right.epsilon_lower(delta, sure),
        epsilon_refutable=all_right.epsilon_lower(delta, 1 - REFUTED_BELOW / len(p_values)),
        tests=len(p_values),
        p_value=min(1.0, min(p_values) * len(p_values)),
    )


def _estimate(scores: Numbers, coins: NDArray[np.bool_], delta: float) -> float | None:
    """Epsilon between Gaussians fitted to the scores of either kind; None for too few of one."""
    if min(coins.sum(), (~coins).sum()) < _FEWEST:
        return None
    return estimate(scores[~coins], scores[coins], delta)
