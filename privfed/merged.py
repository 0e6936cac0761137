"""What several runs over one population spent together: the epsilon of tuning, say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.errors import AccountingError
from accounting.events import Event, Spending, apart
from accounting.guarantee import CHOICES, TIGHTEST, Guarantee, guarantee
from accounting.ledger import Ledger
from privfed.audit import RunAudit, audit
from privfed.errors import Refused
from privfed.prior import Prior
from privfed.rundir import RunDirectory


@dataclass(frozen=True)
class Merged:
    """The guarantee that covers a client over all `runs`, and those that these count as earlier."""

    runs: tuple[RunAudit, ...]
    earlier: tuple[str, ...]
    bound: Guarantee | None
    problems: tuple[str, ...]

    def to_json(self) -> Mapping[str, Any]:
        """What `privfed audit A B --json` prints."""
        bound = self.bound
        notes = {str(note) for run in self.runs if (note := run.terms.get("note"))}
        return {
            "epsilon": bound.epsilon if bound else math.inf,
            "delta": bound.delta if bound else None,
            "unit": bound.unit if bound else None,
            "relation": bound.relation if bound else None,
            "sampler": bound.sampler if bound else None,
            "accountant": bound.accountant if bound else None,
            "accountants": bound.by_accountant if bound else {},
            "rounds": bound.rounds if bound else 0,
            "runs": [run.to_json() for run in self.runs],
            "earlier": list(self.earlier),
            "note": "; ".join(sorted(notes)) or None,
            "ledger_ok": not self.problems,
            "problems": list(self.problems),
        }


def merge(paths: Sequence[Path], accountant: str | None = None) -> Merged:
    """Compose the ledgers of the runs at `paths`, each once, with what they count as earlier.

    Raises `Refused` for runs over different populations, or whose guarantees say different things:
    no epsilon covers one client over these.
    """
    if accountant is not None and accountant not in CHOICES:
        raise Refused(f"over several runs, --accountant is one of {', '.join(CHOICES)}")
    audits = tuple(audit(path) for path in paths)
    problems = tuple(f"{run.path}: {said}" for run in audits for said in run.problems)
    if problems:
        return Merged(audits, (), None, problems)
    for key, what in (("population", "population"), ("relation", "relation"), ("unit", "unit")):
        _refuse_different(audits, key, what)
    delta = _refuse_different(audits, "delta", "delta")
    spending, earlier = _together([RunDirectory.open(path) for path in paths])
    try:
        bound = guarantee(spending, delta, accountant or TIGHTEST)
    except AccountingError as error:
        raise Refused(f"these runs cannot be composed: {error}") from error
    return Merged(audits, earlier, bound, ())


def _refuse_different(audits: Sequence[RunAudit], key: str, what: str) -> Any:
    first = audits[0]
    for other in audits[1:]:
        if other.terms.get(key) != first.terms.get(key):
            said = "" if key == "population" else f" ({first.terms.get(key)}, {other.terms[key]})"
            raise Refused(
                f"{first.path} and {other.path} differ in their {what}{said}: ledgers are merged "
                "over one population (data.population, or the same [data] and seed), unit, "
                "relation and delta only; audit them one by one"
            )
    return first.terms.get(key)


def _together(directories: Sequence[RunDirectory]) -> tuple[Spending, tuple[str, ...]]:
    """What all runs were charged, each run once, as far as it went; and the names of earlier ones.

    A run that is named counts as it is now, whatever another one had counted of it.
    """
    named: dict[str, Spending] = {}
    earlier: dict[tuple[str, str], Prior] = {}
    for directory in directories:
        ledger = Ledger.load(directory.ledger)
        named[str(ledger.terms["id"])] = apart(ledger.own)
        for stated in map(Prior.from_json, ledger.terms.get("prior", [])):
            earlier[stated.run, stated.head] = stated
    left = [prior for prior in earlier.values() if prior.run not in named]
    total: Counter[Event] = Counter()
    for spent in [*named.values(), *(prior.own for prior in left)]:
        total.update(spent)
    return total, tuple(dict.fromkeys(prior.path for prior in left))
