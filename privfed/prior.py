"""Earlier runs over the same population: what they spent counts before a new one starts."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.accountants import Spending
from accounting.events import Event
from accounting.ledger import Ledger
from privfed.audit import audit
from privfed.config import Config
from privfed.errors import Refused
from privfed.rundir import RunDirectory


@dataclass(frozen=True)
class Prior:
    """What one earlier run was charged, and all that had been charged before it."""

    path: str
    head: str
    spending: Spending
    terms: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """What the new run's ledger states of it."""
        charges = [[event.to_json(), count] for event, count in self.spending.items()]
        return {"run": self.path, "head": self.head, "charges": charges}


def population(config: Config) -> str:
    """Whom a run's guarantee covers, by name: `data.population`, or all that defines the data."""
    if config.data.population:
        return config.data.population
    facts = {"data": config.values()["data"], "seed": config.run.seed}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return f"sha256 of [data] and run.seed: {digest}"


def priors(config: Config) -> tuple[Prior, ...]:
    """The runs that `privacy.prior` names.

    Raises `Refused` for a path that is no run, that is still running, is broken or a simulation, or
    over another population: what cannot be composed is never left out silently.
    """
    names = config.privacy.prior
    found = tuple(_prior(name) for name in names)
    counted = [Path(name).resolve() for name in names]
    for prior in found:
        counted += [Path(run["run"]).resolve() for run in prior.terms.get("prior", [])]
    for path, times in Counter(counted).items():
        if times > 1:
            raise Refused(
                f"privacy.prior counts {path} {times} times, by itself or as an earlier run of "
                "another; name each run once"
            )
    for prior in found:
        _refuse_other(prior, config)
    return found


def spending(found: Sequence[Prior]) -> Spending:
    """What all of them spent together."""
    total: Counter[Event] = Counter()
    for prior in found:
        total.update(prior.spending)
    return total


def _prior(name: str) -> Prior:
    path = Path(name)
    directory = RunDirectory.open(path)
    with contextlib.suppress(PermissionError), directory.locked():
        pass  # refused where the run is still going on, and would spend more
    problems = audit(path).problems
    if problems:
        raise Refused(f"privacy.prior: {name} proves nothing: {problems[0]}")
    ledger = Ledger.load(directory.ledger)
    return Prior(name, ledger.head().hex(), ledger.spending, ledger.terms)


def _refuse_other(prior: Prior, config: Config) -> None:
    terms = prior.terms
    seeded = config.run.randomness == "seeded"
    if terms.get("note") and not seeded:
        raise Refused(
            f"privacy.prior: {prior.path} is a simulation, whose epsilon is nominal: what it "
            "released is not covered; it can be composed with simulations only"
        )
    ours = population(config)
    if terms.get("population") != ours:
        raise Refused(
            f"privacy.prior: {prior.path} ran over the population {terms.get('population')!r}, and "
            f"this run is over {ours!r}; ledgers are merged over one population only. Where it is "
            "the same, give it the same name in both: data.population"
        )
