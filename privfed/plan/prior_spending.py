"""What earlier runs over the same population spent, and its composition with a run's own charges.

Each guarantee of a run composes over the same earlier runs: against the server and against readers,
where noise is distributed, and for examples of silos. Plans, summaries and audits all come here.

The events of all these runs are counted together and accounted for at once, as those of one run
are: no epsilons are added. The unit is the client, or one example of a silo under DP-SGD.
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
from accounting.events import Event, Spending, apart
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from privfed.plan.assumed import SERVER, UNSTATED, Assumed, terms_are_whole
from privfed.plan.assumptions import Incomposable, charged_against
from privfed.privacy.shared_noise import OTHER_PARTY
from privfed.sampling.evaluation_rounds import EvaluationRounds
from privfed.store.lineage import FRESH, Lineage


@dataclass(frozen=True)
class Prior:
    """One earlier run, as it stood when it was counted, and what it was charged itself.

    `run` and `head` identify it and how far it was. `spending` is what it was charged against the
    party `against` (None: all but a trusted server), and `other` against the other party of
    distributed noise; None where no ledger states that.
    """

    path: str
    run: str
    head: str
    spending: Spending
    examples: Spending | None = None
    """What each example of a silo may have been charged, by DP-SGD; None where no ledger states any
    such bound, which is not that nothing was released.
    """
    against: str | None = None
    other: Spending | None = None
    lineage: Lineage = FRESH
    """What made the model that it started from."""
    passed: frozenset[str] = frozenset()
    """Earlier heads of its ledger, at which its model was taken for a start."""
    assumed: Assumed | None = None
    """The assumptions that `spending` and `other` hold under; None where no ledger states them."""
    planned: Spending | None = None
    """What all rounds that it planned would have been charged; None where all of them were."""

    def to_json(self) -> dict[str, Any]:
        """What the new run's ledger states of it."""
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
        return {**facts, "lineage": self.lineage.to_json()}

    @classmethod
    def from_json(cls, stated: Mapping[str, Any], against: str | None = None) -> Prior:
        """What a ledger states, whose own charges are `against` that party."""
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
        )

    @classmethod
    def of(cls, path: str, ledger: Ledger, rounds: int = 0) -> Prior:
        """The run at `path`, as its ledger stands, which planned so many `rounds` (0: unknown)."""
        terms, run, head = ledger.terms, str(ledger.terms.get("id")), ledger.head().hex()
        return cls(
            path,
            run,
            head,
            apart(ledger.run_spending),
            charged_under(ledger, "examples") if "examples" in terms else None,
            terms.get("against"),
            apart(charged_under(ledger, "other")) if "other" in terms else None,
            Lineage.of_start(terms),
            assumed=Assumed.stated(terms),
            planned=if_stopped(rounds, ledger) if rounds else None,
        )

    @property
    def heads(self) -> frozenset[str]:
        """The heads at which its ledger is known to have stood, up to what was counted."""
        return self.passed | {self.head}

    def went_through(self, heads: Iterable[str], beside: Path | None = None) -> Prior:
        """The same run, knowing which of `heads` its ledger passed before it was counted.

        As the ledger says that lies at its path, or in the folder `beside`: only its own holds the
        head at which it was counted.
        """
        unknown = {*heads} - self.heads
        ledgers = self.ledgers(beside) if unknown else []
        last = bytes.fromhex(self.head)
        passed = {
            head
            for head in unknown
            if any(ledger.passed(bytes.fromhex(head), last) for ledger in ledgers)
        }
        return replace(self, passed=self.passed | passed) if passed else self

    def ledgers(self, beside: Path | None = None) -> list[Ledger]:
        """Its own ledger and copies that went on, where they are at hand."""
        ledgers = []
        for folder in filter(None, (Path(self.path), beside)):
            with contextlib.suppress(OSError, AccountingError):
                ledgers.append(Ledger.load(folder / "ledger.jsonl"))
        return [ledger for ledger in ledgers if ledger.holds(bytes.fromhex(self.head))]

    def toward(self, against: str | None) -> Prior | None:
        """The same run, `spending` being what it was charged against `against`.

        None where no ledger states that.
        """
        if against == self.against:
            return self
        if self.other is None or OTHER_PARTY.get(str(self.against)) != against:
            return None
        other = replace(self, spending=self.other, other=self.spending, against=against)
        return replace(other, planned=None)  # stated for the headline alone

    def under(self, now: Assumed) -> Prior:
        """The same run, charged for what it releases under the assumptions `now` of a later one.

        `other` is None where that cannot be computed for it. Raises `Incomposable` where it cannot
        for `spending`.
        """
        assumed = self.assumed
        if assumed is None:
            if self.against or now.sites_per_client not in (None, 1) or SERVER not in now.trusts:
                raise Incomposable(f"{UNSTATED}, so that its epsilon is infinite for this run")
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
    """All runs that count before a new one, each once, and the clients they declared public.

    `lineage` is what made the model that the new run starts from, and `disjoint` the runs (path and
    id) whose people it declares to be others than its own.
    """

    runs: tuple[Prior, ...] = ()
    public: frozenset[str] = frozenset()
    lineage: Lineage = FRESH
    disjoint: Mapping[str, str] = field(default_factory=dict)

    @property
    def spending(self) -> Spending:
        """What all of them spent together."""
        return total(prior.spending for prior in self.runs)

    @property
    def planned(self) -> Spending:
        """What all of them would have spent together, had none ended before its last round."""
        return total(prior.planned or prior.spending for prior in self.runs)

    @property
    def uncovered(self) -> str:
        """Why no guarantee over these covers what a starting model tells; empty where all do.

        What earlier runs started from counts as well: what they released may tell of it.
        """
        heads: dict[str, set[str]] = {}
        for prior in self.runs:
            heads.setdefault(prior.run, set()).update(prior.heads)
        return self._starts.uncovered(heads)

    @property
    def _starts(self) -> Lineage:
        """What made the models that all of them, and the new run, started from."""
        return reduce(or_, (prior.lineage for prior in self.runs), self.lineage)

    def traced(self, beside: Path | None = None) -> Priors:
        """The same runs, each knowing which starts its ledger passed, where ledgers are at hand."""
        heads: dict[str, set[str]] = {}
        for origin in self._starts.runs:
            heads.setdefault(origin.id, set()).add(origin.head)
        runs = tuple(prior.went_through(heads.get(prior.run, ()), beside) for prior in self.runs)
        return replace(self, runs=runs)

    def under(self, now: Assumed) -> Priors:
        """The same runs, charged under the assumptions `now`. Raises `Incomposable`."""
        return replace(self, runs=tuple(prior.under(now) for prior in self.runs))

    @classmethod
    @terms_are_whole()
    def stated(cls, terms: Mapping[str, Any]) -> Priors:
        """What the ledger that states `terms` counts before its own charges.

        Raises `LedgerBroken` for terms of another form.
        """
        against, runs = terms.get("against"), terms.get("prior", [])
        disjoint = {run["run"]: run["id"] for run in terms.get("disjoint", [])}
        return cls(
            tuple(Prior.from_json(run, against) for run in runs),
            lineage=Lineage.of_start(terms),
            disjoint=disjoint,
        )


NOTHING = Priors()


def charged_under(ledger: Ledger, key: str, charges: int | None = None) -> Spending:
    """What the run of `ledger` was charged beside its headline, by the events stated under `key`.

    It is that of the first `charges`, or of all. Rounds in which clients evaluate have an event of
    their own, stated with the one that they are charged in the headline. Raises `LedgerBroken` for
    a ledger that has further events beside these.
    """
    stated = ledger.terms.get(key)
    if stated is None:
        return {}
    beside = Event.from_json(stated["event"])
    of = {
        Event.from_json(each["charged"]): Event.from_json(each["event"])
        for each in stated.get("evaluation", [])
    }
    if of and len(ledger.run_spending.keys() - of.keys()) > 1:
        raise LedgerBroken(f"{ledger.path}: some charges state nothing under {key!r}")
    return Counter(of.get(charge.event, beside) for charge in ledger.charges[:charges])


def planned_by(rounds: int, ledger: Ledger) -> Spending:
    """Returns the charges of a run after all its planned `rounds`, from its ledger's first line.

    Charges beyond these, as of evaluations that were asked for later, count as they are.
    """
    done = Counter(charge.event for charge in ledger.charges)
    stated = ledger.terms.get("planned")
    if stated is None or ledger.chosen is not None:
        return done
    events = [Event.from_json(event) for event in stated["events"]]
    evaluating = EvaluationRounds(stated["evaluate_every"]).among(rounds)
    planned = Counter({events[0]: rounds - evaluating})
    if evaluating:
        planned[events[-1]] += evaluating
    return planned | done


def if_stopped(rounds: int, ledger: Ledger) -> Spending | None:
    """Returns what a run's planned rounds add to other runs', where it ended before the last one.

    None where it did not, or where it ended at its budget: that round follows from public
    constants.
    """
    planned = planned_by(rounds, ledger)
    done = sum(planned.values()) == len(ledger.charges)
    return None if done or _at_budget(ledger) else apart(planned)


def _at_budget(ledger: Ledger) -> bool:
    """Whether one more round would exceed the budget."""
    if ledger.budget is None or not ledger.charges:
        return False
    one_more = total([ledger.spending, {ledger.charges[-1].event: 1}])
    bound = guarantee(one_more, ledger.terms["delta"], ledger.terms["accountant"])
    return bound.epsilon > ledger.budget


def total(spendings: Iterable[Spending]) -> Spending:
    """All of `spendings` together."""
    counts: Counter[Event] = Counter()
    for spending in spendings:
        counts.update(spending)
    return counts


def _listed(spending: Spending) -> list[list[Any]]:
    """`spending` as a ledger states it: pairs of an event and its count."""
    return [[event.to_json(), count] for event, count in spending.items()]


def _counted(pairs: Iterable[Sequence[Any]]) -> Spending:
    """What `_listed` wrote."""
    return {Event.from_json(event): count for event, count in pairs}
