"""The joint audit of several runs over one population, for example the epsilon of tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from accounting.documents import encoded
from accounting.errors import AccountingError
from accounting.guarantee import CHOICES, TIGHTEST, Guarantee, guarantee, stated
from accounting.ledger import Ledger
from privfed.auditing.audited_run import RunAudit
from privfed.auditing.run_audit import audit
from privfed.config.population_identity import normal
from privfed.core.errors import Refused
from privfed.plan.assumed import Assumed
from privfed.plan.assumptions import Incomposable
from privfed.plan.composed_guarantees import clients_of, examples_guarantee, other_guarantee
from privfed.plan.prior_spending import Prior, Priors
from privfed.privacy.shared_noise import OTHER_PARTY
from privfed.store.run_directory import RunDirectory

_TRUSTED = "all but a trusted server"
"""Words for the party against which epsilon holds if a ledger names none."""


@dataclass(frozen=True)
class JointAudit:
    """The guarantees that several runs prove together.

    Attributes:
      runs: the audits of the runs.
      earlier: paths of further runs that `runs` count as earlier runs.
      bound: the guarantee for a client over all `runs` and `earlier` runs; None if there are
        `problems`.
      problems: contradictions that the audits found.
      examples: the joint guarantee for one example of a silo; None if no run states one, or there
        are `problems`.
      other: the joint guarantee against the party for which the budget is not enforced; None if
        there is no such party, or there are `problems`.
    """

    runs: tuple[RunAudit, ...]
    earlier: tuple[str, ...]
    bound: Guarantee | None
    problems: tuple[str, ...]
    examples: Guarantee | None = None
    other: Guarantee | None = None
    assumed: Assumed | None = None
    """Assumptions of the joint guarantees: the largest number of colluders and Byzantine clients of
    any run, and every party that any run trusts.
    """

    def to_json(self) -> Mapping[str, Any]:
        """Returns the object that `privfed audit A B --json` prints."""
        bound = self.bound
        notes = {str(note) for run in self.runs if (note := run.terms.get("note"))}
        return {
            "epsilon": bound.epsilon if bound else math.inf,
            "delta": bound.delta if bound else None,
            **{
                key: getattr(bound, key, None)
                for key in ("unit", "relation", "sampler", "accountant")
            },
            "accountants": bound.by_accountant if bound else {},
            "against": (bound.against or None) if bound else None,
            "uncovered": (bound.uncovered or None) if bound else None,
            "guarantees": stated(bound, self.examples, self.other),
            "rounds": bound.rounds if bound else 0,
            "assumes": encoded(self.assumed),
            "runs": encoded(self.runs),
            "earlier": list(self.earlier),
            "note": "; ".join(sorted(notes)) or None,
            "ledger_ok": not self.problems,
            "problems": list(self.problems),
        }


def audit_together(paths: Sequence[Path], accountant: str | None = None) -> JointAudit:
    """Returns the joint audit of several runs, with the runs that they count as earlier.

    The charges of each run are composed once, even if several runs count it.

    Args:
      paths: the run directories.
      accountant: rdp, pld or tightest; None: tightest.

    Raises:
      Refused: if the accountant is unknown, a run has no guarantee, two of the directories are
        copies of one run, or the runs have different populations or incompatible guarantees, so
        that no epsilon covers one client over all of them.
    """
    if accountant is not None and accountant not in CHOICES:
        raise Refused(
            f"--accountant is {accountant!r}, but several runs are audited together; use one of "
            f"{', '.join(CHOICES)}"
        )
    audits = tuple(audit(path) for path in paths)
    for run in audits:
        if run.terms.get("guarantee"):
            raise Refused(
                f"{run.path} has no guarantee that could be composed ({run.terms['guarantee']}); "
                "leave the run out"
            )
    problems = tuple(f"{run.path}: {problem}" for run in audits for problem in run.problems)
    if problems:
        return JointAudit(audits, (), None, problems)
    _refuse_different_terms(audits)
    delta, party = audits[0].terms["delta"], audits[0].terms.get("against")
    paths_once = {path.resolve(): path for path in paths}
    directories = [RunDirectory.open(path) for path in paths_once.values()]
    _refuse_different_public_clients(directories)
    runs, earlier = _runs_and_earlier(directories)
    assumed = reduce(or_, (Assumed.from_terms(run.terms) or Assumed() for run in audits))
    culprits = {str(run.path): run.excluded for run in audits}
    together = Priors(
        tuple(_charged(_toward(run, party), assumed, culprits.get(run.path, 0)) for run in runs)
    ).traced()
    try:
        bound = guarantee(together.spending, delta, accountant or TIGHTEST)
    except AccountingError as error:
        raise Refused(f"these runs cannot be composed: {error}") from error
    clients, uncovered = max(clients_of(run.terms) for run in audits), together.uncovered
    bound = replace(bound, against=party or "", uncovered=uncovered, clients=clients)
    examples, other = None, None
    if deltas := [run.examples.delta for run in audits if run.examples]:
        examples = examples_guarantee({}, together.runs, max(deltas), uncovered)
    if party in OTHER_PARTY:
        against = OTHER_PARTY[party]
        other = other_guarantee({}, against, together.runs, delta, uncovered, clients)
    return JointAudit(audits, earlier, bound, (), examples, other, assumed)


def _charged(run: Prior, assumed: Assumed, culprits: int) -> Prior:
    """Returns `run` with its charges under the joint assumptions `assumed`.

    `culprits` is the number of parties that `run` proved Byzantine; they never count as honest.
    Raises `Refused` if no bound under these assumptions is known.
    """
    try:
        return run.under(assumed.with_detected_byzantine(culprits) if culprits else assumed)
    except Incomposable as error:
        raise Refused(f"these runs cannot be composed: {run.path}: {error}") from None


def _toward(run: Prior, party: str | None) -> Prior:
    """Returns `run` with the charges against the party of the first run's epsilon, `party`.

    None is every party except a trusted server. Raises `Refused` if no ledger states these charges.
    """
    toward = run.toward(party)
    if toward is None:
        raise Refused(
            f"epsilon of the first run holds against {party or _TRUSTED}, but no ledger states the "
            f"charges of {run.path} against that party; audit the runs one by one"
        )
    return toward


def _refuse_different_terms(audits: Sequence[RunAudit]) -> None:
    """Raises `Refused` if two runs differ in their population, unit, relation or delta.

    The relation is not compared if any run states a party (`privacy.against`): its charges against
    the party of the joint guarantee may have another relation.
    """
    first = audits[0]
    for other in audits[1:]:
        if _population(other) != _population(first):
            raise _differ(first, other, "population")
    keys = ["unit", "relation", "delta"]
    if any(run.terms.get("against") for run in audits):  # its charges may have another relation
        keys.remove("relation")
    for key in keys:
        for other in audits[1:]:
            if other.terms.get(key) != first.terms.get(key):
                values = f"{key} ({first.terms.get(key)}, {other.terms.get(key)})"
                raise _differ(first, other, values)


def _population(run: RunAudit) -> Mapping[str, Any]:
    return normal(run.terms.get("population") or {})


def _differ(first: RunAudit, other: RunAudit, what: str) -> Refused:
    return Refused(
        f"{first.path} and {other.path} differ in their {what}, but only ledgers of one population "
        "(data.population, or the same [data] and seed), unit, relation, delta and party can be "
        "merged; audit the runs one by one"
    )


def _refuse_different_public_clients(directories: Sequence[RunDirectory]) -> None:
    """Raises `Refused` if the runs declared different clients public.

    No epsilon over all runs covers a client that one of the runs declared public.
    """
    lists = {frozenset(directory.public_clients.of_all_runs()) for directory in directories}
    if len(lists) > 1:
        raise Refused(
            "these runs declared different clients public, so the guarantee of one may cover a "
            "client whose data another does not protect; audit the runs one by one"
        )


def _runs_and_earlier(
    directories: Sequence[RunDirectory],
) -> tuple[list[Prior], tuple[str, ...]]:
    """Returns every run once, and the paths of the further runs that these count as earlier.

    Raises `Refused` for two directories of one run: a ledger cannot distinguish an older copy from
    a copy that continued separately and spent twice. Also raises `Refused` for an older copy: its
    ledger lacks the head that another of the runs states of it.
    """
    by_id: dict[str, tuple[Ledger, Prior]] = {}
    for directory in directories:
        ledger = Ledger.load(directory.ledger)
        prior = Prior.of(str(directory.path), ledger)
        if prior.run in by_id:
            raise Refused(
                f"{by_id[prior.run][1].path} and {prior.path} are copies of one run (or one seeded "
                "run with other rounds), but each run counts once; name one of them, and never "
                "resume a copy"
            )
        by_id[prior.run] = ledger, prior
    earlier: dict[tuple[str, str], Prior] = {}
    for ledger, _ in by_id.values():
        for counted in Priors.from_terms(ledger.terms).runs:
            if counted.run not in by_id:
                earlier[counted.run, counted.head] = counted
                continue
            its_ledger, named = by_id[counted.run]
            if not its_ledger.holds(bytes.fromhex(counted.head)):
                raise Refused(
                    f"{named.path} is an older copy of a run that another run counts as an earlier "
                    "run; name the present run directory"
                )
    runs = [*(prior for _, prior in by_id.values()), *earlier.values()]
    return runs, tuple(dict.fromkeys(prior.path for prior in earlier.values()))
