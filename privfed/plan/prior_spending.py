"""The spending of earlier runs over the same population, composed with a run's own charges.

Every guarantee of a run composes over the same earlier runs: those against the server and against
readers if noise is distributed, and the one for examples of silos. Epsilons are not added: the
events of all runs are accounted for together. The unit is the client, or one example of a silo.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from accounting.errors import AccountingError, LedgerBroken
from accounting.events import Event, Spending, summable
from accounting.ledger import Ledger
from privfed.plan.assumed import SERVER, UNSTATED, Assumed, terms_are_whole
from privfed.plan.assumptions import Incomposable, charged_against
from privfed.privacy.shared_noise import OTHER_PARTY
from privfed.sampling.evaluation_rounds import EvaluationRounds
from privfed.store.lineage import FRESH, Lineage


@dataclass(frozen=True)
class Prior:
    """An earlier run at the time when it was counted, with its own charges.

    Attributes:
      path: directory of the run.
      run: id of the run.
      head: head of its ledger when it was counted.
      spending: its charges against the party `against`.
      against: the party of `spending`; None: all parties that the run does not trust.
      other: its charges against the other party of distributed noise; None if none are stated.
      lineage: the runs that trained its initial model.
    """

    path: str
    run: str
    head: str
    spending: Spending
    examples: Spending | None = None
    """Charges of DP-SGD for each example of a silo; None if single examples have no guarantee."""
    against: str | None = None
    other: Spending | None = None
    lineage: Lineage = FRESH
    passed: frozenset[str] = frozenset()
    """Earlier heads of its ledger, at which other runs took its model as their initial model."""
    assumed: Assumed | None = None
    """The assumptions under which `spending` and `other` hold; None if no ledger states them."""
    planned: Spending | None = None
    """The charges of all its planned rounds; None if all of them were completed."""
    odometer: bool = False
    """Whether no planned number of rounds bounds its charges: some were added after releases."""

    def to_json(self) -> dict[str, Any]:
        """Returns the entry for this run in the ledger of a run that counts it."""
        charges = _listed(self.spending)
        facts: dict[str, Any] = {"run": self.path, "id": self.run, "head": self.head}
        facts["charges"] = charges
        if self.examples is not None:
            facts["examples"] = _listed(self.examples)
        if self.against:
            facts["against"] = self.against
        if self.other is not None:
            facts["other"] = _listed(self.other)
        if self.passed:
            facts["passed"] = sorted(self.passed)
        if self.assumed is not None:
            facts["assumes"] = self.assumed.to_json()
        if self.planned is not None:
            facts["planned"] = _listed(self.planned)
        if self.odometer:
            facts["odometer"] = True
        return {**facts, "lineage": self.lineage.to_json()}

    @classmethod
    def from_json(cls, stated: Mapping[str, Any], against: str | None = None) -> Prior:
        """Parses an entry of a ledger; `against` is the party of that ledger's own charges."""
        spending = _counted(stated.get("charges", []))
        examples, other, planned = (
            _counted(stated[key]) if key in stated else None
            for key in ("examples", "other", "planned")
        )
        lineage = Lineage.from_json(stated.get("lineage"))
        party = stated.get("against", against)
        run, head = stated["id"], stated["head"]
        passed = frozenset(stated.get("passed", []))
        assumed = Assumed.from_json(stated.get("assumes"))
        return cls(
            stated["run"],
            run,
            head,
            spending,
            examples,
            party,
            other,
            lineage,
            passed,
            assumed,
            planned,
            bool(stated.get("odometer")),
        )

    @classmethod
    def of(
        cls, path: str, ledger: Ledger, planned: Spending | None = None, odometer: bool = False
    ) -> Prior:
        """Returns the entry of the run at `path`; `planned` and `odometer` are its attributes."""
        terms, run, head = ledger.terms, str(ledger.terms.get("id")), ledger.head().hex()
        return cls(
            path,
            run,
            head,
            summable(ledger.run_spending),
            charged_under(ledger, "examples") if "examples" in terms else None,
            terms.get("against"),
            summable(charged_under(ledger, "other")) if "other" in terms else None,
            Lineage.of_start(terms),
            assumed=Assumed.from_terms(terms),
            planned=planned,
            odometer=odometer,
        )

    @property
    def heads(self) -> frozenset[str]:
        """The known heads of its ledger, up to and including `head`."""
        return self.passed | {self.head}

    def with_passed_heads(self, heads: Iterable[str], folder: Path | None = None) -> Prior:
        """Returns this run with those `heads` in `passed` that its ledger had before `head`.

        Args:
          heads: the heads to look for.
          folder: a folder with a copy of the run's ledger, which is read in addition to `path`. A
            ledger without the counted head is ignored.
        """
        unknown = {*heads} - self.heads
        ledgers = self.ledgers(folder) if unknown else []
        last = bytes.fromhex(self.head)
        passed = {
            head
            for head in unknown
            if any(ledger.passed(bytes.fromhex(head), last) for ledger in ledgers)
        }
        return replace(self, passed=self.passed | passed) if passed else self

    def ledgers(self, folder: Path | None = None) -> list[Ledger]:
        """Returns the ledgers at `path` and in `folder` that contain the counted head."""
        ledgers = []
        for path in filter(None, (Path(self.path), folder)):
            with contextlib.suppress(OSError, AccountingError):
                ledgers.append(Ledger.load(path / "ledger.jsonl"))
        return [ledger for ledger in ledgers if ledger.holds(bytes.fromhex(self.head))]

    def toward(self, against: str | None) -> Prior | None:
        """Returns this run with its charges against the party `against` (None: all untrusted
        parties) as `spending`; None if they are unknown. If the party changes, `planned` is None.
        """
        if against == self.against:
            return self
        if self.other is None or OTHER_PARTY.get(str(self.against)) != against:
            return None
        other = replace(self, spending=self.other, other=self.spending, against=against)
        # The planned charges are stated for the headline only.
        return replace(other, planned=None, odometer=self.odometer or self.planned is not None)

    def under(self, now: Assumed) -> Prior:
        """Returns this run with its charges recomputed under the assumptions `now` of a later run.

        `other` becomes None if it cannot be recomputed. Raises `Incomposable` if `spending` or
        `planned` cannot be recomputed.
        """
        assumed = self.assumed
        if assumed is None:
            if self.against or now.sites_per_client not in (None, 1) or SERVER not in now.trusts:
                raise Incomposable(f"{UNSTATED}, so its epsilon is infinite for this run")
            return self
        spending = charged_against(self.spending, self.against, assumed, now)
        other, party = self.other, OTHER_PARTY.get(self.against or "")
        if other is not None:
            try:
                other = charged_against(other, party, assumed, now)
            except Incomposable:
                other = None
        planned = self.planned
        if planned is not None:
            planned = charged_against(planned, self.against, assumed, now)
        return replace(
            self, spending=spending, other=other, assumed=assumed.under(now), planned=planned
        )


@dataclass(frozen=True)
class Priors:
    """The earlier runs that a new run counts.

    Attributes:
      runs: the earlier runs, each once.
      public: the clients that these runs declared public.
      lineage: the runs that trained the new run's initial model.
      disjoint: id by path of runs that are declared to share no client with the new run.
    """

    runs: tuple[Prior, ...] = ()
    public: frozenset[str] = frozenset()
    lineage: Lineage = FRESH
    disjoint: Mapping[str, str] = field(default_factory=dict)

    @property
    def spending(self) -> Spending:
        """The charges of all runs together."""
        return total(prior.spending for prior in self.runs)

    @property
    def planned(self) -> Spending:
        """The charges of all planned rounds of all runs together."""
        return total(prior.planned or prior.spending for prior in self.runs)

    @property
    def uncovered(self) -> str:
        """The reason why guarantees over these runs do not cover an initial model; "" otherwise.

        This includes initial models of the earlier runs, since releases depend on them.
        """
        heads: dict[str, set[str]] = {}
        for prior in self.runs:
            heads.setdefault(prior.run, set()).update(prior.heads)
        return self._starts.uncovered(heads)

    @property
    def _starts(self) -> Lineage:
        """The runs that trained the initial models of these runs and of the new run."""
        return reduce(or_, (prior.lineage for prior in self.runs), self.lineage)

    def traced(self, folder: Path | None = None) -> Priors:
        """Returns the same runs, with the heads of known initial models added to `passed`."""
        heads: dict[str, set[str]] = {}
        for origin in self._starts.runs:
            heads.setdefault(origin.id, set()).add(origin.head)
        runs = tuple(
            prior.with_passed_heads(heads.get(prior.run, ()), folder) for prior in self.runs
        )
        return replace(self, runs=runs)

    def under(self, now: Assumed) -> Priors:
        """Returns the same runs, charged under `now`. Raises `Incomposable` if not possible."""
        return replace(self, runs=tuple(prior.under(now) for prior in self.runs))

    @classmethod
    @terms_are_whole()
    def from_terms(cls, terms: Mapping[str, Any]) -> Priors:
        """Reads the earlier runs that a ledger with these `terms` counts.

        Raises `LedgerBroken` for malformed terms.
        """
        against, runs = terms.get("against"), terms.get("prior", [])
        disjoint = {run["run"]: run["id"] for run in terms.get("disjoint", [])}
        return cls(
            tuple(Prior.from_json(run, against) for run in runs),
            lineage=Lineage.of_start(terms),
            disjoint=disjoint,
        )


NOTHING = Priors()


def charged_under(
    ledger: Ledger, key: str, charges: int | None = None, rounds: int = 0
) -> Spending:
    """Returns a run's charges for a guarantee other than that of the budget.

    Under `key`, the terms state a training round's event for that guarantee, and the event that
    replaces each charged event of evaluations. Without `key`, the result is empty.

    Args:
      ledger: the run's ledger.
      key: the key of the terms: "examples", or "other" for the other party.
      charges: the number of charges to count, from the first; None: all.
      rounds: if not 0, the number of planned rounds to count instead of charges.

    Raises:
      LedgerBroken: if the terms do not state an event for every charge.
    """
    stated = ledger.terms.get(key)
    if stated is None:
        return {}
    folder = Event.from_json(stated["event"])
    of = {
        Event.from_json(each["charged"]): Event.from_json(each["event"])
        for each in stated.get("evaluation", [])
    }
    if of and len(ledger.run_spending.keys() - of.keys()) > 1:
        raise LedgerBroken(f"{ledger.path}: some charges state nothing under {key!r}")
    counted = planned_by(rounds, ledger) if rounds else Counter(_charged(ledger)[:charges])
    return total({of.get(event, folder): count} for event, count in counted.items())


def planned_by(rounds: int, ledger: Ledger) -> Spending:
    """Returns the charges of a run if it completes all its planned `rounds`.

    The ledger's first line states their events. Further charges in the ledger are included.
    """
    return _planned(rounds, ledger) | Counter(ledger.counts)


def unplanned(rounds: int, ledger: Ledger) -> Spending:
    """Returns the charges of a run beyond its planned `rounds`, such as of later evaluations."""
    return Counter(ledger.counts) - _planned(rounds, ledger)


def _charged(ledger: Ledger) -> list[Event]:
    return [charge.event for charge in ledger.charges]


def _planned(rounds: int, ledger: Ledger) -> Counter[Event]:
    """Returns the planned charges; those made if no plan is stated, or after private tuning."""
    stated = ledger.terms.get("planned")
    if stated is None or ledger.chosen is not None:
        return Counter(ledger.counts)
    events = [Event.from_json(event) for event in stated["events"]]
    evaluating = EvaluationRounds(stated["evaluate_every"]).among(rounds)
    planned = Counter({events[0]: rounds - evaluating})
    if evaluating:
        planned[events[-1]] += evaluating
    return planned


def total(spendings: Iterable[Spending]) -> Spending:
    """Returns the sum of all `spendings`."""
    counts: Counter[Event] = Counter()
    for spending in spendings:
        counts.update(spending)
    return counts


def _listed(spending: Spending) -> list[list[Any]]:
    """Returns `spending` in the form of a ledger: pairs of an event and its count."""
    return [[event.to_json(), count] for event, count in spending.items()]


def _counted(pairs: Iterable[Sequence[Any]]) -> Spending:
    """Returns the spending that `_listed` stated."""
    return {Event.from_json(event): count for event, count in pairs}
