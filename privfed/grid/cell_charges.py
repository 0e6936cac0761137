"""Reads the privacy charges of a grid's cells from their ledgers, or computes the planned ones."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.errors import AccountingError
from accounting.events import Spending, summable
from accounting.ledger import Ledger
from accounting.releases import noise_of
from privfed.auditing.prior_runs import priors
from privfed.config.config import Config
from privfed.config.population_identity import population_identity
from privfed.core.errors import Broken
from privfed.grid.cells import Cell
from privfed.grid.pictures.figures import text
from privfed.plan.assumed import UNSTATED, Assumed
from privfed.plan.prior_spending import Prior, Priors
from privfed.run.prepare import plan_with_length
from privfed.store.run_directory import RunDirectory


@dataclass(frozen=True)
class CellCharges:
    """The charges of one run of a cell, actual or planned.

    Attributes:
      cell: name of the cell. A tuned cell may have planned entries of several runs, of which only
        one will be chosen.
      key: identifier of the run; its planned and its actual charges have the same key.
      population: identifier of the population.
      about: description of the population.
      run: the run with these charges, in the form in which a later run counts it.
      terms: the terms of the charges (unit, delta, ...), as the first line of a ledger states them.
      prior: the earlier runs whose charges this run's guarantee includes.
      public: the clients declared public, which no guarantee covers; None if they are not known
        yet.
      ledger: the run's ledger; None for planned or unknown charges.
      unread: the reason why the charges are unknown; None if they are known.
      sources: identifiers of the data; runs with a common source may be over the same population.
    """

    cell: str
    key: str
    population: str
    about: str
    run: Prior
    terms: Mapping[str, Any]
    prior: tuple[Prior, ...] = ()
    public: frozenset[str] | None = frozenset()
    ledger: Ledger | None = None
    unread: str | None = None
    sources: frozenset[str] = frozenset()

    @property
    def planned(self) -> bool:
        """Whether these are planned charges, not those of a ledger."""
        return self.ledger is None and self.unread is None

    @property
    def void(self) -> str | None:
        """The reason why this run has no guarantee (unknown charges, no noise, or unstated
        assumptions).

        None if it has a guarantee.
        """
        spendings = [self.run.spending, *(prior.spending for prior in self.prior)]
        noiseless = "no noise" if any(map(_lacks_noise, spendings)) else None
        unstated = bool(self.terms.get("against")) and "assumes" not in self.terms
        return (
            self.unread
            or self.terms.get("guarantee")
            or noiseless
            or (UNSTATED if unstated else None)
        )

    def meaning(self, term: str) -> Any:
        """Returns the value of a term of the ledger's first line, whether at the top level or under
        "assumes".
        """
        assumed = Assumed.from_terms(self.terms) or Assumed()
        stated = assumed.to_json().get(term, self.terms.get(term))
        return tuple(stated) if isinstance(stated, list) else stated

    def counts(self, prior: Prior) -> bool:
        """Whether `prior` is this run, and the ledger holds the head at which it was counted."""
        if self.ledger is None or self.run.run != prior.run:
            return False
        return self.ledger.holds(bytes.fromhex(prior.head))


def _lacks_noise(spending: Spending) -> bool:
    noises = [noise_of(release) for event in spending for release in event.releases]
    return any(noise is None or noise.noise_multiplier == 0.0 for noise in noises)


def charged(cell: Cell, folder: Path, slot: str = "") -> Iterator[CellCharges]:
    """Yields the charges of a cell's run, and of its earlier broken runs, in renamed folders.

    A ledger that cannot be read yields an entry with the reason in `unread`. Nothing is yielded for
    a refused cell.

    A seeded run that is trained again repeats its releases, so both count as one run.

    Args:
      cell: the cell.
      folder: the folder of the cell's run directories.
      slot: the cell's name in the yielded entries; "": that of `cell`.
    """
    if cell.config is None:
        return
    slot = slot or cell.name
    population, about = population_of(cell, cell.config)
    sources = _sources(cell.config)
    for path in sorted(folder.glob("run*/ledger.jsonl")):
        try:
            ledger = Ledger.load(path)
            public = frozenset(RunDirectory(path.parent).public_clients.of_all_runs())
            prior = Priors.from_terms(ledger.terms).runs
        except (AccountingError, Broken, OSError):
            unread = "the charges of an unreadable ledger are unknown"
            nothing = Prior(str(path.parent), str(path), "", {})
            yield CellCharges(
                slot, str(path), population, about, nothing, {}, unread=unread, sources=sources
            )
            continue
        run = Prior.of(str(path.parent), ledger)
        repeats = path.parent.name == "run" or ledger.terms.get("randomness") == "seeded"
        key = cell.name if repeats else run.run
        yield CellCharges(
            slot, key, population, about, run, ledger.terms, prior, public, ledger, sources=sources
        )


def uncounted(folder: Path, cells: Collection[str]) -> Counter[str]:
    """Returns the number of charged runs under `folder` that belong to none of `cells`, by
    population.

    Such runs are cells of other grids, or of this grid before it was edited. Unreadable ledgers are
    left out.
    """
    population: Counter[str] = Counter()
    for path in folder.glob("*/run*/ledger.jsonl"):
        if path.parent.parent.name not in cells:
            with contextlib.suppress(AccountingError, OSError, KeyError, TypeError):
                ledger = Ledger.load(path)
                population[str(ledger.terms["population"]["unit"])] += bool(ledger.run_spending)
    return population


def planned_charges(cell: Cell, slot: str = "") -> CellCharges:
    """Returns the charges of all planned rounds of a cell.

    Args:
      cell: the cell, which must have a configuration.
      slot: the cell's name in the result; "": that of `cell`.

    Raises:
      Refused: if `train` would refuse the configuration.
    """
    assert cell.config is not None
    config, slot = cell.config, slot or cell.name
    before = priors(config)
    plan = plan_with_length(config, before)
    rounds, dp = config.run.rounds, config.example_privacy
    examples = {dp.event(config.client.epochs): rounds} if dp else None
    terms = {
        "unit": plan.event.unit,
        "relation": plan.event.relation,
        "delta": config.privacy.delta,
        "accountant": config.privacy.accountant,
        "guarantee": plan.void,
        "note": plan.simulation,
        **({"against": config.against} if config.against else {}),
        "assumes": plan.assumed.to_json(),
        **({"examples": {"delta": dp.delta}} if dp else {}),
    }
    spending = summable(plan.spending(rounds))
    run = Prior("", slot, "", spending, examples, lineage=before.lineage)
    public = None if config.data.holdout == "clients" else before.public
    whose, sources = population_of(cell, config), _sources(config)
    return CellCharges(slot, cell.name, *whose, run, terms, before.runs, public, sources=sources)


def _sources(config: Config) -> frozenset[str]:
    """Returns identifiers of the sources of real data; empty for synthetic clients."""
    return frozenset(
        population_identity(config)["sources"] if config.source.holds_real_clients else ()
    )


def population_of(cell: Cell, config: Config) -> tuple[str, str]:
    """Returns the population of a cell's releases: its identifier, and a description.

    Clients that are named in a file are the same population for every seed, and for every
    `data.population`: a seed only determines which of them are public.
    """
    source, column = config.names["source"], config.values()["data"].get("client", "")
    population = str(population_identity(config)["unit"])
    if config.real_clients:
        return population, f"clients of {source}" + (f" ({column})" if column else "")
    varied = [f"{k} {text(v)}" for k, v in cell.values.items() if k.startswith("data.")]
    return population, ", ".join(["simulated", *varied, f"seed {cell.seed}"])
