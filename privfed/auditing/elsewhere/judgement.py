"""What canaries show of the epsilon that another pipeline claims, as tables and JSON have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accounting.empirical.two_sample import REFUTED_BELOW


@dataclass(frozen=True)
class Judgement:
    """What `canaries` show of a claim, of which `heads` had coins that show heads.

    Figures for who saw every release are None where there was one only. Those that name the
    Gaussian family hold if the pipeline's noise is Gaussian, and are None where nobody said so.
    `epsilon_lower_bound_most` is what so many canaries could show were all guesses right, and
    `epsilon_refutable` up to which claim this would refute. `p_value` is the smallest of all
    `tests` of the claim, times their number.
    """

    canaries: int
    heads: int
    relation: str
    releases: int
    simulated: bool
    confidence: float
    epsilon_claimed: float
    delta: float
    epsilon_estimate_all_iterates: float | None
    epsilon_estimate_final: float | None
    epsilon_lower_bound: float | None
    epsilon_lower_bound_final: float
    epsilon_lower_bound_gaussian: float | None
    epsilon_lower_bound_gaussian_final: float | None
    epsilon_lower_bound_most: float
    epsilon_refutable: float
    tests: int
    p_value: float

    @property
    def refuted(self) -> bool:
        """Whether the canaries refute the claim."""
        return self.p_value < REFUTED_BELOW

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed canary judge --json` prints."""
        return {**asdict(self), "refuted": self.refuted}


def judgement_rows(judgement: Judgement) -> Mapping[str, str]:
    """The rows of the table, which tell estimates, bounds and what nobody could see apart."""
    j, sure = judgement, f"{judgement.confidence:.0%}"
    verdict = (
        "REFUTED: the pipeline does not deliver what is claimed"
        if j.refuted
        else "the canaries do not contradict the claim; that proves nothing"
    )
    pairs = {
        "canaries": f"{j.canaries}, of which {j.heads} had heads ({j.relation})",
        "releases": f"{j.releases} models after the initial one",
        "estimate": f"ε ≈ {_two(j.epsilon_estimate_all_iterates, j.epsilon_estimate_final)} "
        "(no bounds)",
        "lower bound": f"ε ≥ {_two(j.epsilon_lower_bound, j.epsilon_lower_bound_final)}, with "
        f"{sure} confidence",
    }
    if j.epsilon_lower_bound_gaussian_final is not None:
        both = _two(j.epsilon_lower_bound_gaussian, j.epsilon_lower_bound_gaussian_final)
        pairs["if Gaussian"] = f"were the noise Gaussian: ε ≥ {both}, with {sure} confidence"
    pairs |= {
        "power": f"so many canaries could show ε ≥ {_shown(j.epsilon_lower_bound_most)} at most, "
        f"and refute claims of up to {_shown(j.epsilon_refutable)}",
        "verdict": f"{verdict} (ε = {j.epsilon_claimed:.4g} at δ = {j.delta:g}; p = "
        f"{j.p_value:.2g}, corrected over {j.tests} tests; refuted below {REFUTED_BELOW:g})",
    }
    if j.simulated:
        pairs["note"] = "coins follow from a seed: whoever knows it could answer to them"
    return pairs


def _two(every: float | None, final: float | None) -> str:
    """A figure for either adversary."""
    return (
        f"{_shown(every)} for who saw every release, {_shown(final)} for who sees the final model"
    )


def _shown(epsilon: float | None) -> str:
    return "—" if epsilon is None else f"{epsilon:.3g}"
