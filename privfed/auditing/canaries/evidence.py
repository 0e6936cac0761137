"""The evidence of a run's canaries about the claimed epsilon: estimates and lower bounds.

There are two adversaries. One sees every release; the other sees only the final model. If canaries
train, only the second adversary is scored. Each canary gets one score per adversary, and
`accounting.empirical` tests these scores. An *estimate* assumes Gaussian scores and may err in
either direction. It uses a canary's largest cosine with a release, or the cosine with the final
model, as in Andrew et al. 2024. A *lower bound* holds with its confidence, however the canaries
affect each other. Two further bounds are tighter, but conditional, and never refute a run's claim.
The first holds if the run's trade-off function is Gaussian. The second, which splits the canaries,
holds if they do not affect each other, as is nearly the case for random directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accounting.documents import Encoded
from accounting.empirical.verdicts import REFUTED_BELOW, Verdicts
from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT

_HEADS: Mapping[str, str] = {
    ADD_REMOVE: "were in the population",
    ZERO_OUT: "sent their row, the others zero",
    REPLACE_ONE: "sent their row, the others the opposite",
}
"""By adjacency relation, the behaviour of canaries whose bit is heads, in words
(`privfed.auditing.canaries.inclusion`)."""
_ENOUGH = 200
"""Number of canaries below which separately fitted standard deviations are unreliable."""


@dataclass(frozen=True)
class Evidence(Verdicts, Encoded):
    """The evidence of `canaries` synthetic clients; `entered` is the number with the bit heads.

    Under add/remove, these canaries were in the population, and the others not. Under another
    `relation` all canaries were, and those with heads sent their own row.

    Fields with "_final" use the final model; the corresponding fields without it use every release.
    The bound with "_split" uses every release if releases were recorded, else the final model.
    `epsilon_estimate_likelihood` uses likelihood ratios instead of cosines. Bounds with
    "_if_gaussian" hold if the run's trade-off function is Gaussian, the bound with "_split" if
    canaries do not affect each other. A figure is None if it needs more canaries, or releases that
    were not recorded. `epsilon_lower_bound_most` is the largest bound that this number of canaries
    could give, if all guesses were right. `p_value` is the smallest p-value of all one-run tests of
    the claim and of its whole trade-off function, multiplied by their number, plus the claim's
    slack.
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
        """Whether there are fewer than 200 canaries, so that chance dominates the estimates."""
        return self.canaries < _ENOUGH


def evidence_rows(evidence: Evidence) -> Mapping[str, str]:
    """Returns texts on the evidence by label, as `privfed audit` prints them."""
    sure = f"{evidence.confidence:.0%}"
    return {
        "canaries": f"{evidence.canaries}; {evidence.entered} {_heads(evidence)}",
        "estimate": _estimates(evidence),
        "lower bound": _for_both(
            evidence.epsilon_lower_bound, evidence.epsilon_lower_bound_final, sure
        )
        + (
            f" (at most {_shown(evidence.epsilon_lower_bound_most)} with {evidence.canaries} "
            "canaries)"
        ),
        "if Gaussian": "if the run's trade-off curve is that of Gaussian noise: "
        + _for_both(
            evidence.epsilon_lower_bound_if_gaussian,
            evidence.epsilon_lower_bound_final_if_gaussian,
            sure,
        )
        + (
            f" (at most {_shown(evidence.epsilon_lower_bound_most_if_gaussian)} with "
            f"{evidence.canaries} canaries)"
        ),
        "independent": "if canaries are independent of each other: ε ≥ "
        f"{_shown(evidence.epsilon_lower_bound_split)} with {sure} confidence",
        "verdict": verdict_text(evidence),
    }


def verdict_text(evidence: Evidence) -> str:
    """Returns the verdict on the claim as text: refuted, doubtful or not contradicted."""
    verdict = "the canaries do not contradict the claim"
    if evidence.doubted:
        verdict = (
            "DOUBTFUL, which is rare for a correct run: repeat with more canaries. The canaries "
            "speak against the claim"
        )
    if evidence.refuted:
        verdict = "REFUTED: the mechanism does not satisfy the ledger's claim"
    return (
        f"{verdict} of ε = {evidence.epsilon_claimed:.4g} (p = {evidence.p_value:.2g}; refuted "
        f"below {REFUTED_BELOW:g})"
    )


def _heads(evidence: Evidence) -> str:
    """Returns a phrase on what canaries with heads did, for example "were in the population".

    Canaries that train send no opposite rows.
    """
    trained = evidence.epsilon_estimate_all_iterates is None
    opposite = evidence.relation == REPLACE_ONE
    return _HEADS[ZERO_OUT if trained and opposite else evidence.relation]


def _estimates(evidence: Evidence) -> str:
    """Formats the estimates of epsilon from the final model and, if recorded, all releases."""
    final = f"{_shown(evidence.epsilon_estimate_final)} from the final model"
    few = ", dominated by chance at this number of canaries" if evidence.by_chance else ""
    if evidence.epsilon_estimate_all_iterates is None:
        return f"ε ≈ {final} (not a bound{few})"
    return (
        f"ε ≈ {_shown(evidence.epsilon_estimate_all_iterates)} from every release, {final} (not "
        f"bounds{few}; by likelihoods, which are not Gaussian: "
        f"{_shown(evidence.epsilon_estimate_likelihood)})"
    )


def _for_both(iterates: float | None, final: float | None, sure: str) -> str:
    """Formats the bounds from all releases (None if not recorded) and from the final model.

    `sure` is their confidence as text, for example "95%".
    """
    if iterates is None:
        return f"ε ≥ {_shown(final)} with {sure} confidence from the final model"
    return (
        f"ε ≥ {_shown(iterates)} with {sure} confidence from every release, {_shown(final)} from "
        "the final model"
    )


def _shown(epsilon: float | None) -> str:
    return "—" if epsilon is None else f"{epsilon:.3g}"
