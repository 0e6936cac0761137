"""The result of the audit of one run."""

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


def has_later_charges(run: Mapping[str, Any]) -> bool:
    """Whether the ledger in the stated directory has the stated id, but another head.

    False if the ledger cannot be read.

    Args:
      run: what a ledger states of an earlier run: its directory ("run"), its "id", and the "head"
        of its ledger at that time.
    """
    try:
        ledger = Ledger.load(Path(str(run["run"])) / "ledger.jsonl")
    except (OSError, AccountingError):
        return False
    return bool(ledger.terms.get("id") == run["id"] and ledger.head().hex() != run["head"])


def uncounted_charges(terms: Mapping[str, Any]) -> Iterator[str]:
    """Yields a text for each run in `terms["prior"]` that `has_later_charges`."""
    for run in terms.get("prior", []):
        if has_later_charges(run):
            yield (
                f"{run['run']} was charged again after this run had counted it, so this epsilon "
                "lacks the later charges"
            )


_CANARY_FIGURES = (
    "epsilon_estimate_all_iterates",
    "epsilon_estimate_final",
    "epsilon_lower_bound",
    "confidence",
)
"""Keys of the canaries' evidence that an audit's JSON object repeats at its top level."""


@dataclass(frozen=True)
class RunAudit:
    """The guarantees that a run directory proves.

    If the ledger is broken, or other files contradict it, `guarantee` is None and epsilon infinite.
    If the only problem is that other files claim a smaller epsilon than the ledger proves,
    `problems` states this, and `guarantee` is that of the ledger.

    Attributes:
      path: the run directory.
      guarantee: the guarantee over this run and the earlier runs over the same population that the
        ledger states.
      alone: the guarantee of this run's charges only.
      charges: number of charges (charged rounds) of this run.
      terms: the terms in the ledger's first line.
      noise_multiplier: the noise multiplier; None without noise or charges, or if rounds have
        different events.
      sampling_rate: the sampling rate; None if clients are not sampled or nothing was charged, or
        if rounds have different events.
      problems: contradictions that the audit found.
      examples: the guarantee of DP-SGD for one example of a silo; None if the run has none.
      other: the guarantee of distributed noise against the party for which the budget is not
        enforced; None if the run has none.
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
    """The guarantee to state if the charges of this or an earlier run were not all planned, or not
    all planned rounds were charged; see its `caveat`."""
    planned_others: tuple[Guarantee, ...] = ()
    """Like `planned`, for `examples` and `other`."""
    canaries: Evidence | None = None
    budgets: tuple[BudgetChange, ...] = ()
    ledger_head: str | None = None
    charges_since: int | None = None
    """Number of charges after the head that the caller gave."""
    heads: HeadsCheck | None = None
    opinions: Mapping[str, float | None] = field(default_factory=dict)
    """The epsilon of each requested cross-check."""
    excluded: int = 0
    """Number of parties excluded for provable misbehaviour in secure sums."""

    @property
    def accountants(self) -> Mapping[str, float | None]:
        """Epsilon by accountant, with the cross-checks `opinions`; None if one gives no bound."""
        return {**(self.guarantee.by_accountant if self.guarantee else {}), **self.opinions}

    @property
    def refuted(self) -> bool:
        """Whether the run's canaries refute its claim."""
        return self.canaries is not None and self.canaries.refuted

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed audit --json` prints."""
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
