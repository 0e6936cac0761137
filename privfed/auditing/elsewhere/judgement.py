"""What canaries show of the epsilon that another pipeline claims, as tables and JSON have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accounting.empirical.verdicts import REFUTED_BELOW, Verdicts


@dataclass(frozen=True)
class Judgement(Verdicts):
    """What `canaries` show of a claim, of which `heads` had coins that show heads.

    Figures `_final` are by the whole way from the initial model to the last, and others by single
    releases; these are None where there was one only. Bounds `_gaussian` hold if the pipeline's
    noise is Gaussian; where the claim is by such noise (`gaussian`, `claimed_by`), it is tested as
    a whole. Bounds `_most` are what so many canaries could show were all guesses right, and
    `epsilon_refutable` is the largest claim at `delta` that this would refute; None for no claim.
    So would `canaries_needed` refute this claim, and no fewer; None for more than 100,000.
    `p_value` is the smallest of all tests of the claim, times their number.
    """

    canaries: int
    heads: int
    relation: str
    releases: int
    simulated: bool
    confidence: float
    epsilon_claimed: float
    delta: float
    claimed_by: str
    gaussian: bool
    epsilon_estimate_all_iterates: float | None
    epsilon_estimate_final: float | None
    epsilon_lower_bound: float | None
    epsilon_lower_bound_final: float
    epsilon_lower_bound_gaussian: float | None
    epsilon_lower_bound_gaussian_final: float
    epsilon_lower_bound_most: float
    epsilon_lower_bound_gaussian_most: float
    epsilon_refutable: float | None
    canaries_needed: int | None
    p_value: float

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed canary judge --json` prints."""
        return {**asdict(self), "doubted": self.doubted, "refuted": self.refuted}


def judgement_rows(judgement: Judgement) -> Mapping[str, str]:
    """The rows of the table, which tell estimates, bounds and what nobody could see apart."""
    j, sure = judgement, f"{judgement.confidence:.0%}"
    pairs = {
        "canaries": f"{j.canaries}, of which {j.heads} had heads ({j.relation})",
        "releases": f"{j.releases} after the initial model",
        "claim": f"ε = {j.epsilon_claimed:.4g} at δ = {j.delta:g}, {j.claimed_by}",
        "estimate": f"ε ≈ {_two(j.epsilon_estimate_all_iterates, j.epsilon_estimate_final)} "
        "(not bounds)",
        "lower bound": f"ε ≥ {_two(j.epsilon_lower_bound, j.epsilon_lower_bound_final)}, with "
        f"{sure} confidence (so many could show {_shown(j.epsilon_lower_bound_most)} at most)",
        "if Gaussian": "were its noise Gaussian: ε ≥ "
        f"{_two(j.epsilon_lower_bound_gaussian, j.epsilon_lower_bound_gaussian_final)} (at most "
        f"{_shown(j.epsilon_lower_bound_gaussian_most)})",
        "power": _power(j),
        "verdict": f"{_verdict(j)} (p = {j.p_value:.2g}, corrected over all tests; refuted below "
        f"{REFUTED_BELOW:g})",
    }
    if j.simulated:
        pairs["note"] = "coins follow from a seed: whoever knows it could answer to them"
    return pairs


def _verdict(judgement: Judgement) -> str:
    """Whether the canaries refute the claim, make it doubtful, or do not contradict it."""
    if judgement.refuted:
        return "REFUTED: the pipeline does not deliver what is claimed"
    if judgement.doubted:
        return (
            "DOUBTFUL, as an honest run seldom is: the canaries speak against the claim; try again "
            "with more of them"
        )
    return "the canaries do not contradict the claim, which proves nothing"


def _power(judgement: Judgement) -> str:
    """Which claims could be refuted at all, and why none where there are none."""
    needed = judgement.canaries_needed
    this = f"this claim takes {'more than 100,000' if needed is None else needed} at least"
    if judgement.epsilon_refutable is not None:
        most = f"{judgement.epsilon_refutable:.3g}"
        return f"so many canaries could refute a claim of up to ε = {most}; {this}"
    if needed is not None or judgement.gaussian or judgement.delta < REFUTED_BELOW:
        return f"so few canaries could refute no claim at this δ alone; {this}"
    return (
        f"none: with probability δ = {judgement.delta:g} such a pipeline may show everything, so "
        f"that no one run refutes it at {REFUTED_BELOW:g}. Is the claim by Gaussian noise, add "
        "--gaussian, or its --noise-multiplier; or give the claim at a smaller δ, too"
    )


def _two(every: float | None, final: float | None) -> str:
    """A figure by either statistic."""
    return f"{_shown(every)} by single releases, {_shown(final)} by the whole way (the final model)"


def _shown(epsilon: float | None) -> str:
    return "—" if epsilon is None else f"{epsilon:.3g}"
