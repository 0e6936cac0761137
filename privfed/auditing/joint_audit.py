"""What several runs over one population spent together: the epsilon of tuning, say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accounting.errors import AccountingError
from accounting.guarantee import CHOICES, TIGHTEST, Guarantee, guarantee, stated
from accounting.ledger import Ledger
from privfed.auditing.run_audit import RunAudit, audit
from privfed.config.population_identity import normal
from privfed.errors import Refused
from privfed.plan.prior_spending import Prior, Priors, examples_guarantee, other_guarantee
from privfed.privacy.shared_noise import OTHER
from privfed.store.run_directory import RunDirectory

_TRUSTED = "all but a trusted server"


@dataclass(frozen=True)
class Merged:
    """The guarantee that covers a client over all `runs`, and those that these count as earlier."""

    runs: tuple[RunAudit, ...]
    earlier: tuple[str, ...]
    bound: Guarantee | None
    problems: tuple[str, ...]
    examples: Guarantee | None = None
    other: Guarantee | None = None

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
            "against": (bound.against or None) if bound else None,
            "uncovered": (bound.uncovered or None) if bound else None,
            "guarantees": stated(bound, self.examples, self.other),
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
    for run in audits:
        if run.terms.get("guarantee"):
            raise Refused(f"the guarantee of {run.path} is {run.terms['guarantee']}")
    problems = tuple(f"{run.path}: {said}" for run in audits for said in run.problems)
    if problems:
        return Merged(audits, (), None, problems)
    _refuse_different(audits, "population", "population", lambda one: normal(one or {}))
    _refuse_different(audits, "unit", "unit")
    if len({run.terms.get("against") for run in audits}) == 1:
        _refuse_different(audits, "relation", "relation")
    delta = _refuse_different(audits, "delta", "delta")
    different = {path.resolve(): path for path in paths}
    directories = [RunDirectory.open(path) for path in different.values()]
    _refuse_once_public(directories)
    runs, earlier = _together(directories)
    party = audits[0].terms.get("against")
    whole = Priors(tuple(_toward(run, party) for run in runs)).traced()
    try:
        bound = guarantee(whole.spending, delta, accountant or TIGHTEST)
    except AccountingError as error:
        raise Refused(f"these runs cannot be composed: {error}") from error
    bound = replace(bound, against=party or "", uncovered=whole.uncovered)
    examples, other = None, None
    if deltas := [run.examples.delta for run in audits if run.examples]:
        examples = examples_guarantee({}, whole.runs, max(deltas), whole.uncovered)
    if party is not None:
        other = other_guarantee({}, OTHER[party], whole.runs, delta, whole.uncovered)
    return Merged(audits, earlier, bound, (), examples, other)


def _toward(run: Prior, party: str | None) -> Prior:
    """`run`, as what it was charged against `party`, whom the first run's epsilon is about."""
    found = run.toward(party)
    if found is None:
        raise Refused(
            f"these runs differ in the party that epsilon is about: {party or _TRUSTED}, and no "
            f"ledger states what was charged against it by {run.path}; audit them one by one"
        )
    return found


def _refuse_different(
    audits: Sequence[RunAudit], key: str, what: str, meaning: Callable[[Any], Any] = lambda one: one
) -> Any:
    first = audits[0]
    for other in audits[1:]:
        if meaning(other.terms.get(key)) != meaning(first.terms.get(key)):
            said = (
                "" if key == "population" else f" ({first.terms.get(key)}, {other.terms.get(key)})"
            )
            raise Refused(
                f"{first.path} and {other.path} differ in their {what}{said}: ledgers are merged "
                "over one population (data.population, or the same [data] and seed), unit, "
                "relation, delta and party only; audit them one by one"
            )
    return first.terms.get(key)


def _refuse_once_public(directories: Sequence[RunDirectory]) -> None:
    """A client that one run published is covered by no epsilon over all of them."""
    lists = {frozenset(directory.public_clients.of_all_runs()) for directory in directories}
    if len(lists) > 1:
        raise Refused(
            "these runs declared different clients public, so whom one of them covers another may "
            "have published; audit them one by one"
        )


def _together(directories: Sequence[RunDirectory]) -> tuple[list[Prior], tuple[str, ...]]:
    """Every run once, and the names of those that others count as earlier.

    Raises `Refused` for two directories of one run: a ledger cannot tell an older copy from one
    that went on apart and spent twice.
    """
    found: dict[str, tuple[Ledger, Prior]] = {}
    for directory in directories:
        ledger = Ledger.load(directory.ledger)
        prior = Prior.of(str(directory.path), ledger)
        if prior.run in found:
            raise Refused(
                f"{found[prior.run][1].path} and {prior.path} are copies of one run (or one seeded "
                "run with other rounds): name it once, and never resume a copy"
            )
        found[prior.run] = ledger, prior
    earlier: dict[tuple[str, str], Prior] = {}
    for ledger, _ in found.values():
        for counted in Priors.stated(ledger.terms).runs:
            known = found.get(counted.run)
            if known is None:
                earlier[counted.run, counted.head] = counted
            elif not known[0].holds(bytes.fromhex(counted.head)):
                raise Refused(
                    f"{known[1].path} is an older copy than the one that was counted as earlier; "
                    "name the run itself"
                )
    runs = [*(prior for _, prior in found.values()), *earlier.values()]
    return runs, tuple(dict.fromkeys(prior.path for prior in earlier.values()))
