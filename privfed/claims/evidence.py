"""The evidence of a claim: a run's ledger, its configuration, and facts that its files state."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.documents import encoded, from_json, from_toml
from accounting.errors import LedgerBroken
from accounting.guarantee import CHOICES
from accounting.ledger import Ledger
from privfed.auditing.audited_run import RunAudit
from privfed.auditing.ledger_audit import audit_ledger
from privfed.claims.compact import compact, rebuilt
from privfed.claims.schema import ClaimEvidence
from privfed.config.config import digest
from privfed.core.errors import Refused, resume_command
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN, GIVEN
from privfed.core.text import dump, with_numbers
from privfed.report.page.run_facts import PageFacts, run_facts
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import unpack

LEDGER = "evidence.ledger"
_CONFIGURATION = "evidence.configuration"


def evidence_of(run: Path | RunDirectory) -> ClaimEvidence:
    """Reads the evidence for a claim from the files of a run.

    Args:
      run: the run, or its path.

    Raises:
      Broken: if the run's files contradict each other, or the run has no guarantee yet.
      Busy: if another process uses the run.
      Refused: if there is no run, or it has released nothing yet.
    """
    directory = RunDirectory.open(run)
    with directory.locked(reads=True):
        facts = run_facts(directory)
        if not facts.audit.charges:
            raise Refused(
                f"{directory.path} has released nothing yet, so there is nothing to claim; resume "
                f"the run: {resume_command(directory.path)}"
            )
        tables = from_toml(regular.read_text(directory.config.path))
        tables["privacy"].pop("epsilon", None)  # the ledger states the budget and its changes
        document = {"configuration": tables, "stated": _stated(facts, directory)}
        return ClaimEvidence(ledger=compact(directory.ledger), **from_json(dump(document)))


def _stated(facts: PageFacts, directory: RunDirectory) -> dict[str, Any]:
    """Returns the facts for a claim that follow from neither the ledger nor the configuration."""
    path = directory.checkpoint.path
    tensors, _ = unpack(path) if path.exists() else ({}, {})
    sizes = (math.prod(each.shape) for name, each in tensors.items() if name.startswith("model/"))
    model = {"sha256": hashlib.sha256(regular.read_bytes(path)).hexdigest()} if tensors else {}
    return {
        "framework": "privfed",
        "ended": bool(facts.summary),
        "model": {**model, "parameters": sum(sizes)} if model else None,
        "proof": facts.proof,
        "lost_claims": list(facts.lost_claims),
        "canaries": encoded(facts.audit.canaries),
        "power": encoded(facts.power),
    }


def _refuse_other_terms(ledger: Ledger) -> None:
    """Raises `LedgerBroken` if a charged event has another unit or relation than the terms."""
    terms = ledger.terms
    for charge in ledger.charges:
        event = charge.event
        for key, value in (("unit", event.unit), ("relation", event.relation)):
            if terms.get(key) != value:
                raise LedgerBroken(
                    f"{LEDGER}.terms.{key}: is {terms.get(key)!r}, but round {charge.round} was "
                    f"charged for {value!r}"
                )


@dataclass(frozen=True)
class ClaimedRun:
    """A run as the evidence of a claim describes it, with the facts that texts about it need.

    Attributes:
      ledger: the run's ledger, whose hash chain was computed again.
      keys: the tables of config.toml by section; empty for claims about other frameworks.
      stated: the facts that follow from neither `ledger` nor `keys`.
    """

    ledger: Ledger
    keys: Mapping[str, Any]
    stated: Mapping[str, Any]

    @classmethod
    def of(cls, evidence: ClaimEvidence) -> ClaimedRun:
        """Rebuilds the run's ledger from the evidence, and compares it with the configuration.

        Raises:
          LedgerBroken: if the ledger's chain does not hold, or the ledger contradicts the
            configuration (digest, number of rounds) or its own charges (unit, adjacency relation).
          AttributeError, KeyError, TypeError: if the configuration is not that of a run file.
        """
        ledger = rebuilt(evidence.ledger, LEDGER)
        _refuse_other_terms(ledger)
        keys, stated = evidence.configuration, ledger.terms.get("config")
        if keys and digest(keys) != stated:
            keys = with_numbers(keys)  # a number may be infinite, which JSON states as a text
        if bool(keys) != (stated is not None) or (keys and digest(keys) != stated):
            raise LedgerBroken(
                f"{_CONFIGURATION}: is not the configuration for which the ledger was opened"
            )
        run = cls(ledger, keys, evidence.stated)
        planned = (ledger.terms.get("planned") or {}).get("rounds", 0)
        if run.rounds < planned:
            raise LedgerBroken(
                f"{_CONFIGURATION}.run.rounds: is {run.rounds}, but the ledger states that "
                f"{planned} were planned"
            )
        return run

    @cached_property
    def audit(self) -> RunAudit:
        """The audit of the ledger, with the guarantees that the ledger proves.

        Raises:
          LedgerBroken: if the ledger names no known accountant.
        """
        accountant = self.ledger.terms.get("accountant")
        if accountant not in CHOICES:
            raise LedgerBroken(f"{LEDGER}: the accountant is {accountant!r}, which is unknown")
        return audit_ledger(self.ledger, self.rounds, accountant)

    @property
    def rounds(self) -> int:
        """The planned number of rounds; for a run of another framework, the number of charges."""
        planned = self.keys.get("run", {}).get("rounds")
        return len(self.ledger.charges) if planned is None else int(planned)

    @property
    def nominal(self) -> bool:
        """Whether ε is nominal: the run was a simulation, or its guarantee is void."""
        return any(self.ledger.terms.get(key) for key in ("note", "guarantee")) or self.seeded

    @property
    def seeded(self) -> bool:
        """Whether noise and cohorts are derived from a seed, so that the guarantee is nominal."""
        return self.ledger.terms.get("randomness") == "seeded"

    @property
    def synthetic(self) -> bool:
        """Whether a partition assigned the examples to clients, which are thus not real ones.

        False if the partition is not a built-in one.
        """
        return bool(getattr(self._part("data", "partition"), "assigns", False))

    @property
    def purpose(self) -> str:
        """The purpose of the run's rounds: "training" of a model, or "statistics".

        "training" if the source is not a built-in one.
        """
        return str(getattr(self._part("data", "source"), "purpose", "training"))

    @property
    def private(self) -> bool:
        """Whether the run adds noise for privacy."""
        return self.ledger.terms.get("trust") != "nobody"

    def _part(self, section: str, kind: str) -> type[Any] | None:
        """Returns the class of the part that the run names in [section] for this `kind`.

        None if the part is not built in, since code that evidence names is never imported.
        """
        name = self.key(section, kind)
        built_in = {**BUILT_IN[kind], **GIVEN.get(kind, {})}
        return find(kind, name, f"{section}.{kind}") if name in built_in else None

    @property
    def lost_claims(self) -> list[str]:
        """A sentence for each guarantee that too many parties proved Byzantine have made void."""
        return list(self.stated.get("lost_claims", ()))

    @property
    def proof(self) -> str:
        """A text that summarises the proof of the guarantee; "" if none is stated."""
        return str(self.stated.get("proof", ""))

    @property
    def budget(self) -> float | None:
        """The run's current budget, as an ε at the ledger's δ; None without a budget."""
        return self.ledger.budget

    def key(self, section: str, name: str) -> Any:
        """Returns the value of key `name` in [section] of config.toml; None if it is not set."""
        return self.keys.get(section, {}).get(name)
