"""What an audit says of one run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounting.documents import encoded
from accounting.errors import AccountingError
from accounting.guarantee import Guarantee, stated
from accounting.ledger import BudgetChange, Ledger
from privfed.auditing.canaries.evidence import Evidence
from privfed.store.kept_heads import HeadsCheck


def went_on(run: Mapping[str, Any]) -> bool:
    """Whether a run that a ledger states as earlier is at hand, with charges beyond those stated.

    `run` holds its path ("run"), its "id" and the "head" that its ledger had.
    """
    try:
        ledger = Ledger.load(Path(str(run["run"])) / "ledger.jsonl")
    except (OSError, AccountingError):
        return False
    return bool(ledger.terms.get("id") == run["id"] and ledger.head().hex() != run["head"])


def uncounted_charges(terms: Mapping[str, Any]) -> Iterator[str]:
    """A problem for each earlier run, stated in a ledger's `terms`, that went on."""
    for run in terms.get("prior", []):
        if went_on(run):
            yield (
                f"{run['run']} was charged more after this run had counted it; what it spent since "
                "is not in this epsilon"
            )


_CANARY_FIGURES = (
    "epsilon_estimate_all_iterates",
    "epsilon_estimate_final",
    "epsilon_lower_bound",
    "confidence",
)
"""What an audit says of canaries in its first level."""


@dataclass(frozen=True)
class RunAudit:
    """What a run directory proves.

    `guarantee` covers earlier runs over the same population, which the ledger states; `alone` this
    run's `charges` only. `examples` is what DP-SGD guarantees one example of a silo, and `other`
    what distributed noise guarantees against the party that the budget does not gate. `terms` are
    what the ledger's first line states. `noise_multiplier` and `sampling_rate` are None where
    rounds differ in them.

    Where the ledger is broken or contradicted, `guarantee` is None and epsilon infinite. Where only
    a summary or a metric claims less than the ledger spent, `problems` says so beside the truth.
    """

    path: Path
    guarantee: Guarantee | None
    alone: Guarantee | None
    charges: int
    terms: dict[str, Any]
    noise_multiplier: float | None
    sampling_rate: float | None
    problems: tuple[str, ...]
    examples: Guarantee | None = None
    other: Guarantee | None = None
    planned: Guarantee | None = None
    """The guarantee of all planned rounds, where the run, or an earlier one, ended before."""
    canaries: Evidence | None = None
    budgets: tuple[BudgetChange, ...] = ()
    ledger_head: str | None = None
    charges_since: int | None = None
    """How many charges came after the head that was given."""
    heads: HeadsCheck | None = None
    opinions: Mapping[str, float | None] = field(default_factory=dict)
    """The epsilon of each independent cross-check that was asked for."""
    excluded: int = 0
    """How many parties were proved to lie in secure sums, and are left out since."""

    @property
    def accountants(self) -> Mapping[str, float | None]:
        """Every accountant's epsilon, cross-checks included; None where it has no bound."""
        return {**(self.guarantee.by_accountant if self.guarantee else {}), **self.opinions}

    @property
    def refuted(self) -> bool:
        """Whether the run's canaries refute its claim."""
        return self.canaries is not None and self.canaries.refuted

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed audit --json` prints."""
        bound = self.guarantee
        return {
            "epsilon": bound.epsilon if bound else math.inf,
            "delta": self.terms.get("delta"),
            "unit": self.terms.get("unit"),
            "partition": self.terms.get("partition"),
            "relation": self.terms.get("relation"),
            "sampler": self.terms.get("sampler"),
            "epsilon_alone": self.alone.epsilon if self.alone else math.inf,
            "prior": [run.get("run") for run in self.terms.get("prior", [])],
            "disjoint": [run.get("run") for run in self.terms.get("disjoint", [])],
            "uncovered": (bound.uncovered or None) if bound else None,
            "budgets": encoded(self.budgets),
            "guarantees": stated(
                bound, self.examples, self.other, void=self.terms.get("guarantee")
            ),
            "meaning": (self.terms.get("guarantee") or bound.sentence()) if bound else None,
            "rounds": self.charges,
            "planned": encoded(self.planned),
            "accountant": bound.accountant if bound else None,
            "accountants": self.accountants,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "randomness": self.terms.get("randomness"),
            "arithmetic": self.terms.get("arithmetic"),
            "start": self.terms.get("start"),
            "public_clients": self.terms.get("public_clients", 0),
            "against": self.terms.get("against"),
            "assumes": self.terms.get("assumes"),
            "note": self.terms.get("note"),
            "guarantee": self.terms.get("guarantee"),
            "chosen": self.terms.get("chosen"),
            "excluded": self.excluded,
            **{name: getattr(self.canaries, name, None) for name in _CANARY_FIGURES},
            "canaries": encoded(self.canaries),
            "ledger_head": self.ledger_head,
            "charges_since_head": self.charges_since,
            "heads": {"file": self.heads.path, "agrees": self.heads.agrees} if self.heads else None,
            "ledger_ok": not self.problems,
            "problems": list(self.problems),
            "run": str(self.path),
        }
