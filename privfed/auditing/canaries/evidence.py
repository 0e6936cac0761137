"""What a run's canaries say about the epsilon that it claims: estimates, and bounds.

Two adversaries: one who sees every release, and one who sees the final model only, as alone is
scored where canaries train. Each canary gets one number from either, and `accounting` judges these.
An *estimate* takes them to be Gaussian and may err on either side: by the largest cosine of a
round, and the cosine with the final model, as Andrew et al. 2024. A *lower bound* holds with its
confidence, whatever the canaries do to each other. Two others are tighter, hold under a condition,
and never fail a run: the one if the run's trade-off curve is Gaussian, and the one that splits
canaries if these leave each other alone, as random directions nearly do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accounting.documents import Encoded
from accounting.empirical.verdicts import REFUTED_BELOW, Verdicts
from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT

_HEADS: Mapping[str, str] = {
    ADD_REMOVE: "were in the population",
    ZERO_OUT: "sent their row, and the others zero",
    REPLACE_ONE: "sent their row, and the others the opposite",
}
"""What canaries did whose coin was heads (`privfed.auditing.canaries.coins`)."""
_ENOUGH = 200
"""Canaries below which two deviations that are fitted apart differ so much that estimates do."""


@dataclass(frozen=True)
class Evidence(Verdicts, Encoded):
    """What `canaries` made-up clients show, of whom `entered` were in the population.

    Under a `relation` whose membership is public all were, and those `entered` sent their own row.

    A figure is None where it needs more of them, or releases that they were held against.
    `epsilon_lower_bound_most` is what so many canaries could show, were all guesses right.
    `p_value` is the smallest of all one-run tests of the claim and of its whole trade-off curve,
    times their number.
    """

    stated_last = ("doubted", "refuted")

    canaries: int
    entered: int
    relation: str
    confidence: float
    epsilon_claimed: float
    delta: float
    epsilon_estimate_all_iterates: float | None
    epsilon_estimate_likelihood: float | None
    epsilon_estimate_final: float | None
    epsilon_lower_bound: float | None
    epsilon_lower_bound_final: float | None
    epsilon_lower_bound_most: float
    epsilon_lower_bound_if_gaussian: float | None
    epsilon_lower_bound_final_if_gaussian: float | None
    epsilon_lower_bound_most_if_gaussian: float
    epsilon_lower_bound_split: float | None
    p_value: float

    @property
    def by_chance(self) -> bool:
        """Whether there are so few canaries that estimates are mostly chance."""
        return self.canaries < _ENOUGH


def evidence_rows(evidence: Evidence) -> Mapping[str, str]:
    """The rows of an audit's table that tell the `evidence`, estimates and bounds apart."""
    sure = f"{evidence.confidence:.0%}"
    return {
        "canaries": f"{evidence.canaries}, of which {evidence.entered} {_heads(evidence)}",
        "estimate": _estimates(evidence),
        "lower bound": _for_both(
            evidence.epsilon_lower_bound, evidence.epsilon_lower_bound_final, sure
        )
        + f" (so many could show {_shown(evidence.epsilon_lower_bound_most)} at most)",
        "if Gaussian": "were the run's trade-off curve that of Gaussian noise: "
        + _for_both(
            evidence.epsilon_lower_bound_if_gaussian,
            evidence.epsilon_lower_bound_final_if_gaussian,
            sure,
        )
        + f" (so many could show {_shown(evidence.epsilon_lower_bound_most_if_gaussian)} at most)",
        "if alone": f"were canaries independent of each other: ε ≥ "
        f"{_shown(evidence.epsilon_lower_bound_split)} with {sure} confidence",
        "verdict": verdict_in_words(evidence),
    }


def verdict_in_words(evidence: Evidence) -> str:
    """Whether the canaries refute the claim, make it doubtful, or do not contradict it."""
    verdict = "they do not contradict the claim"
    if evidence.doubted:
        verdict = "DOUBTFUL, as an honest run seldom is: try again with more canaries. They speak "
        verdict += "against the claim"
    if evidence.refuted:
        verdict = "REFUTED: the mechanism does not deliver what the ledger claims"
    return (
        f"{verdict} of ε = {evidence.epsilon_claimed:.4g} (p = {evidence.p_value:.2g}; refuted "
        f"below {REFUTED_BELOW:g})"
    )


def _heads(evidence: Evidence) -> str:
    """What canaries did whose coin was heads; one that trains never sends the opposite."""
    trained = evidence.epsilon_estimate_all_iterates is None
    opposite = evidence.relation == REPLACE_ONE
    return _HEADS[ZERO_OUT if trained and opposite else evidence.relation]


def _estimates(evidence: Evidence) -> str:
    """The estimates, of which one is for who saw every release, where canaries were held to it."""
    final = f"{_shown(evidence.epsilon_estimate_final)} for who sees the final model"
    few = ", and of so few canaries mostly chance" if evidence.by_chance else ""
    if evidence.epsilon_estimate_all_iterates is None:
        return f"ε ≈ {final} (not a bound{few})"
    return (
        f"ε ≈ {_shown(evidence.epsilon_estimate_all_iterates)} for who saw every release, {final} "
        f"(not bounds{few}; by likelihoods, which are no Gaussians: "
        f"{_shown(evidence.epsilon_estimate_likelihood)})"
    )


def _for_both(iterates: float | None, final: float | None, sure: str) -> str:
    """A bound for who saw every release, where canaries were held to it, and the final model's."""
    if iterates is None:
        return f"ε ≥ {_shown(final)} with {sure} confidence for who sees the final model"
    return (
        f"ε ≥ {_shown(iterates)} with {sure} confidence for who saw every release, "
        f"{_shown(final)} for who sees the final model"
    )


def _shown(epsilon: float | None) -> str:
    return "—" if epsilon is None else f"{epsilon:.3g}"
