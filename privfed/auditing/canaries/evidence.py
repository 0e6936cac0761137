"""What a run's canaries say about the epsilon that it claims: estimates, and bounds.

Two adversaries: one who sees every release, and one who sees the final model only. Each canary gets
one number from either, and `accounting` judges these. An *estimate* takes them to be Gaussian and
may err on either side: by the largest cosine of a round, and the cosine with the final model, as
Andrew et al. 2024. A *lower bound* holds with its confidence, whatever the canaries do to each
other; the one that splits them holds if they leave each other alone, as random directions nearly
do, and never fails a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting.events import Event
from accounting.one_run import Guesses, guess
from accounting.one_shot import Bell, epsilon_between, estimate
from accounting.two_sample import REFUTED_BELOW, Claim, judge
from privfed.auditing.canaries.log import Seen
from privfed.auditing.canaries.scores import Scale, likelihood_ratios

Numbers = NDArray[np.float64]
_KNOWN_NULL = 1000
"""From this dimension on a random direction's cosine is Gaussian to within what is fitted."""
_FEWEST = 5
_PARTS = (10, 2, 1)
"""A tenth, a half and all of the coins are guessed."""


@dataclass(frozen=True)
class Evidence:
    """Of `canaries`, of which `entered` were in the population; None where it needs more of them.

    `epsilon_lower_bound_most` is what so many canaries could show, were all guesses right.
    `p_value` is the smallest of all one-run tests of the claim, times their number.
    """

    canaries: int
    entered: int
    confidence: float
    epsilon_claimed: float
    delta: float
    epsilon_estimate_all_iterates: float
    epsilon_estimate_likelihood: float
    epsilon_estimate_final: float | None
    epsilon_lower_bound: float
    epsilon_lower_bound_final: float | None
    epsilon_lower_bound_split: float | None
    epsilon_lower_bound_most: float
    p_value: float

    @property
    def refuted(self) -> bool:
        return self.p_value < REFUTED_BELOW

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "refuted": self.refuted}


def evidence(
    seen: Seen, event: Event, scale: Scale, claims: Sequence[Claim], confidence: float
) -> Evidence | None:
    """Hold what canaries saw against `claims`, the run's own first; None for too few of a kind.

    All claims are points of one privacy profile. At a smaller delta more is claimed of rare
    events, and less is lost to delta for every canary.
    """
    coins = seen.coins
    if not len(seen.rounds) or min(coins.sum(), (~coins).sum()) < _FEWEST:
        return None
    epsilon, delta = claims[0]
    ratio = likelihood_ratios(seen, event, scale)
    largest = (seen.products / seen.lengths[:, None]).max(0)
    statistics = {"iterates": ratio}
    if seen.final is not None:
        statistics["final"] = seen.final
    p_values, bounds = [], {}
    for name, scores in statistics.items():
        all_guesses = [guess(scores, coins, max(1, len(coins) // part)) for part in _PARTS]
        sure = 1 - (1 - confidence) / len(all_guesses)
        bounds[name] = max(guesses.epsilon_lower(delta, sure) for guesses in all_guesses)
        p_values += [one.p_value(*claim) for one in all_guesses for claim in claims]
    return Evidence(
        canaries=len(coins),
        entered=int(coins.sum()),
        confidence=confidence,
        epsilon_claimed=epsilon,
        delta=delta,
        epsilon_estimate_all_iterates=estimate(largest[~coins], largest[coins], delta),
        epsilon_estimate_likelihood=estimate(ratio[~coins], ratio[coins], delta),
        epsilon_estimate_final=_final(seen, delta),
        epsilon_lower_bound=bounds["iterates"],
        epsilon_lower_bound_final=bounds.get("final"),
        epsilon_lower_bound_split=_split(ratio, coins, delta, confidence),
        epsilon_lower_bound_most=Guesses(len(coins), len(coins), len(coins)).epsilon_lower(
            delta, 1 - (1 - confidence) / len(_PARTS)
        ),
        p_value=min(1.0, min(p_values) * len(p_values)),
    )


def _final(seen: Seen, delta: float) -> float | None:
    """By cosines with the final model, whose null is known in high dimension."""
    if seen.final is None:
        return None
    null = Bell(0.0, seen.dimension**-0.5)
    if seen.dimension < _KNOWN_NULL:
        null = Bell.fitted(seen.final[~seen.coins])
    return epsilon_between(null, Bell.fitted(seen.final[seen.coins]), delta)


def _split(
    scores: Numbers, coins: NDArray[np.bool_], delta: float, confidence: float
) -> float | None:
    """The threshold chosen on one half of the canaries, counted on the other."""
    out, into = scores[~coins], scores[coins]
    many = min(len(out), len(into))
    if many < 20:
        return None
    return judge(out[:many], into[:many], delta, confidence, [(0.0, delta)]).epsilon_lower


def words(found: Evidence) -> Mapping[str, str]:
    """What the evidence says, estimates and bounds apart."""

    def shown(value: float | None) -> str:
        return "—" if value is None else f"{value:.3g}"

    sure = f"{found.confidence:.0%}"
    verdict = (
        "REFUTED: the mechanism does not deliver what the ledger claims"
        if found.refuted
        else "they do not contradict the claim"
    )
    return {
        "canaries": f"{found.canaries}, of which {found.entered} were in the population",
        "estimate": f"ε ≈ {shown(found.epsilon_estimate_all_iterates)} for who saw every release, "
        f"{shown(found.epsilon_estimate_final)} for who sees the final model (not bounds; by "
        f"likelihoods, which are no Gaussians: {shown(found.epsilon_estimate_likelihood)})",
        "lower bound": f"ε ≥ {shown(found.epsilon_lower_bound)} with {sure} confidence for who saw "
        f"every release, {shown(found.epsilon_lower_bound_final)} for who sees the final model (so "
        f"many could show {shown(found.epsilon_lower_bound_most)} at most)",
        "if alone": f"were canaries independent of each other: ε ≥ "
        f"{shown(found.epsilon_lower_bound_split)} with {sure} confidence",
        "verdict": f"{verdict} of ε = {found.epsilon_claimed:.4g} (p = {found.p_value:.2g}; "
        f"refuted below {REFUTED_BELOW:g})",
    }
