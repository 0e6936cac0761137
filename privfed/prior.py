"""Earlier runs over the same population: what they spent counts before a new one starts.

The guarantee of the new run then covers a client over all of them together. So the runs have to
speak of the same clients, no client whose data an earlier run published may be claimed as covered
now, and a run that was counted may not go on spending behind the back of the one that counted it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounting.events import Event, Spending, apart
from accounting.ledger import Ledger
from privfed.audit import audit, examples_charged, went_on
from privfed.config import Config
from privfed.errors import Refused
from privfed.federation import Federation
from privfed.rundir import RunDirectory


@dataclass(frozen=True)
class Prior:
    """What one earlier run was charged itself. `run` and `head` identify it and how far it was."""

    path: str
    run: str
    head: str
    own: Spending
    examples: Spending = field(default_factory=dict)
    """What each example of a silo may have been charged, by DP-SGD."""

    def to_json(self) -> dict[str, Any]:
        """What the new run's ledger states of it."""
        charges = [[event.to_json(), count] for event, count in self.own.items()]
        facts = {"run": self.path, "id": self.run, "head": self.head, "charges": charges}
        if self.examples:
            facts["examples"] = [[event.to_json(), n] for event, n in self.examples.items()]
        return facts

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> Prior:
        own, examples = (
            {Event.from_json(event): count for event, count in stated.get(key, [])}
            for key in ("charges", "examples")
        )
        return cls(stated["run"], stated["id"], stated["head"], own, examples)

    @classmethod
    def of(cls, path: str, ledger: Ledger) -> Prior:
        """The run at `path`, as its ledger stands."""
        run, head = str(ledger.terms.get("id")), ledger.head().hex()
        return cls(path, run, head, apart(ledger.own), examples_charged(ledger))


@dataclass(frozen=True)
class Priors:
    """All runs that count before a new one, each once, and the clients they declared public."""

    runs: tuple[Prior, ...] = ()
    public: frozenset[str] = frozenset()

    @property
    def spending(self) -> Spending:
        """What all of them spent together."""
        return _sum(prior.own for prior in self.runs)

    @property
    def examples(self) -> Spending:
        """What all of them may have charged one example of a silo."""
        return _sum(prior.examples for prior in self.runs)


def _sum(spendings: Iterable[Spending]) -> Spending:
    total: Counter[Event] = Counter()
    for spending in spendings:
        total.update(spending)
    return total


def population(config: Config) -> dict[str, Any]:
    """Whom a run's guarantee covers: `name`, and what makes a client one (`unit`).

    Natural clients of a file are those whom its client column names, whatever the path, under the
    name `data.population`; everything simulated is what all of [data] and the seed make it.
    """
    data = config.values()["data"]
    facts = hashlib.sha256(
        json.dumps({"data": data, "seed": config.run.seed}, sort_keys=True).encode()
    ).hexdigest()
    natural = config.names["partition"] == "natural" and getattr(
        config.parts["source"], "found", False
    )
    unit = f"{config.names['source']}: {data.get('client', '')}" if natural else facts
    return {"name": config.data.population or facts, "unit": unit}


def priors(config: Config) -> Priors:
    """The runs that `privacy.prior` names, and those that count before them.

    Raises `Refused` for a path that is no run, that is still running, is broken or a simulation, or
    over another population: what cannot be composed is never left out silently.
    """
    runs: dict[tuple[str, str], Prior] = {}
    public: set[str] = set()
    for name in dict.fromkeys(config.privacy.prior):
        directory = RunDirectory.open(Path(name))
        with contextlib.suppress(PermissionError), directory.locked():
            pass  # refused where the run is still going on, and would spend more
        problems = audit(directory.path).problems
        if problems:
            raise Refused(f"privacy.prior: {name} proves nothing: {problems[0]}")
        ledger = Ledger.load(directory.ledger)
        _refuse_other(name, ledger.terms, config)
        own = Prior.of(name, ledger)
        for prior in (own, *map(Prior.from_json, ledger.terms.get("prior", []))):
            _refuse_gone_on(prior)
            runs[prior.run, prior.head] = prior
        public |= set(directory.read_public())
    found = Priors(tuple(runs.values()), frozenset(public))
    _refuse_uncounted_start(config, found)
    return found


def _refuse_other(name: str, terms: Mapping[str, Any], config: Config) -> None:
    if terms.get("guarantee"):
        raise Refused(f"privacy.prior: the guarantee of {name} is {terms['guarantee']}")
    if terms.get("note") and config.run.randomness != "seeded":
        raise Refused(
            f"privacy.prior: {name} is a simulation, whose epsilon is nominal: what it released is "
            "not covered; it can be composed with simulations only"
        )
    distributed = config.parts["mechanism"].trust == "sum"
    against = config.privacy.against if distributed else None
    if terms.get("against") != against:
        nobody = "all but a trusted server"
        raise Refused(
            f"privacy.prior: the epsilon of {name} is against {terms.get('against') or nobody}, "
            f"and this run's against {against or nobody}: no sum of the two bounds what either "
            "sees; use the same mechanism and privacy.against"
        )
    ours, theirs = population(config), terms.get("population")
    theirs = theirs if isinstance(theirs, dict) else {}
    if theirs.get("unit") != ours["unit"]:
        raise Refused(
            f"privacy.prior: a client of {name} is not a client of this run, so no epsilon covers "
            "one over both. Ledgers are merged over one population only: the same source and "
            "client column or, for simulated clients, the same [data] and run.seed"
        )
    if theirs.get("name") != ours["name"]:
        raise Refused(
            f"privacy.prior: {name} has other [data] than this run. If it is over the same people, "
            f'say so: data.population = "{theirs.get("name")}". Ledgers are merged over one '
            "population only"
        )


def _refuse_gone_on(prior: Prior) -> None:
    """Where a counted run is at hand, it has to stand where it was counted."""
    if went_on(prior.to_json()):
        raise Refused(
            f"privacy.prior: {prior.path} was charged more after another run had counted it; what "
            "it spent since is in nobody's sum. Name it in privacy.prior beside that run"
        )


def refuse_once_public(found: Priors, federation: Federation) -> None:
    """A client whose data an earlier run published is not covered by any guarantee now."""
    covered = {*federation.examples.clients} if federation.identities is not None else set()
    both = sorted(covered & found.public)
    if both:
        raise Refused(
            f"privacy.prior: {len(both)} clients were declared public by an earlier run and would "
            "now be covered by this run's guarantee, which cannot hold for them. Keep run.seed and "
            "data.holdout_fraction as they were there",
            private=f"the first of them is {both[0]!r}",
        )


def _refuse_uncounted_start(config: Config, found: Priors) -> None:
    """A model trained on the same clients is a release about them, and has to be counted."""
    init = Path(config.start.init) if config.start.init else None
    if init is None:
        return
    ledger = (init if init.is_dir() else init.parent) / "ledger.jsonl"
    if not ledger.exists():
        return
    terms = Ledger.load(ledger).terms
    ours, theirs = population(config), terms.get("population")
    same = isinstance(theirs, dict) and theirs.get("name") == ours["name"]
    if same and str(terms.get("id")) not in {prior.run for prior in found.runs}:
        raise Refused(
            f"model.init: {config.start.init} was trained on this population, so what it tells of "
            f'its clients counts too: name that run in privacy.prior = ["{ledger.parent}"]'
        )
