"""What single cells of a grid release of their people: as their ledgers stand, or as planned."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.errors import AccountingError
from accounting.events import Spending, apart
from accounting.ledger import Ledger
from accounting.releases import noise_of
from privfed.auditing.prior_runs import priors
from privfed.config.config import Config
from privfed.config.population_identity import population
from privfed.errors import Broken
from privfed.grid.figures import text
from privfed.grid.grid import Cell
from privfed.plan.prior_spending import Prior, Priors
from privfed.run.prepare import planned as plan_of
from privfed.store.run_directory import RunDirectory


@dataclass(frozen=True)
class CellCharges:
    """One run of the cell `cell`: its charges, `run`, what they mean, and the runs that it counts.

    Those of one `key` are one run: what is planned for it and what it was charged. Of several that
    are planned for one cell, one will be chosen. `people` says whom it is about (two of one value
    are about the same people), `about` in words; two that share any of `sources` may be about the
    same people. `terms` are those of its ledger. `public` names the clients that it
    covers not, None where that is not known yet. `unread` says why its charges are not known.
    """

    cell: str
    key: str
    people: str
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
        """Whether this is still to be charged."""
        return self.ledger is None and self.unread is None

    @property
    def void(self) -> str | None:
        """Why this run promises nothing, None where it does."""
        spendings = [self.run.spending, *(prior.spending for prior in self.prior)]
        bare = "no noise" if any(map(_bare, spendings)) else None
        return self.unread or self.terms.get("guarantee") or bare

    def counts(self, prior: Prior) -> bool:
        """Whether `prior` is an earlier state of this run."""
        if self.ledger is None or self.run.run != prior.run:
            return False
        return self.ledger.holds(bytes.fromhex(prior.head))


def _bare(spending: Spending) -> bool:
    noises = [noise_of(event.release) for event in spending]
    return any(noise is None or noise.noise_multiplier == 0.0 for noise in noises)


def charged(cell: Cell, folder: Path, slot: str = "") -> Iterator[CellCharges]:
    """What the cell's run under `folder` was charged, and those that broke and were set aside.

    A seeded run that is trained afresh repeats what it released, and is one run with it.
    """
    if cell.config is None:
        return
    slot = slot or cell.name
    people, about = whom(cell, cell.config)
    sources = _sources(cell.config)
    for path in sorted(folder.glob("run*/ledger.jsonl")):
        try:
            ledger = Ledger.load(path)
            public = frozenset(RunDirectory(path.parent).public_clients.of_all_runs())
            prior = Priors.stated(ledger.terms).runs
        except (AccountingError, Broken, OSError):
            unread = "a ledger that cannot be read says nothing of what was charged"
            nothing = Prior(str(path.parent), str(path), "", {})
            yield CellCharges(
                slot, str(path), people, about, nothing, {}, unread=unread, sources=sources
            )
            continue
        run = Prior.of(str(path.parent), ledger)
        again = path.parent.name == "run" or ledger.terms.get("randomness") == "seeded"
        key = cell.name if again else run.run
        yield CellCharges(
            slot, key, people, about, run, ledger.terms, prior, public, ledger, sources=sources
        )


def uncounted(folder: Path, cells: Collection[str]) -> Counter[str]:
    """How many runs under `folder` are none of `cells`, and about which people.

    They are of other grids, or of this one before it was edited.
    """
    people: Counter[str] = Counter()
    for path in folder.glob("*/run*/ledger.jsonl"):
        if path.parent.parent.name not in cells:
            with contextlib.suppress(AccountingError, OSError, KeyError, TypeError):
                ledger = Ledger.load(path)
                people[str(ledger.terms["population"]["unit"])] += bool(ledger.run_spending)
    return people


def planned(cell: Cell, slot: str = "") -> CellCharges:
    """What the cell will be charged for all its rounds. Raises `Refused` as `train` would."""
    assert cell.config is not None
    config, slot = cell.config, slot or cell.name
    before = priors(config)
    whole = plan_of(config, before)
    rounds, dp = config.run.rounds, config.example_privacy
    examples = {dp.event(config.client.epochs): rounds} if dp else None
    stated = {
        "unit": whole.event.unit,
        "relation": whole.event.relation,
        "delta": config.privacy.delta,
        "accountant": config.privacy.accountant,
        "guarantee": whole.void,
        "note": whole.simulation,
        **({"against": config.privacy.against} if whole.other is not None else {}),
        **({"examples": {"delta": dp.delta}} if dp else {}),
    }
    spending = apart({whole.event: rounds})
    run = Prior("", slot, "", spending, examples, lineage=before.lineage)
    public = None if config.data.holdout == "clients" else before.public
    whose, sources = whom(cell, config), _sources(config)
    return CellCharges(slot, cell.name, *whose, run, stated, before.runs, public, sources=sources)


def _sources(config: Config) -> frozenset[str]:
    """Where people of the data come from, whatever makes a client; made-up ones have none."""
    return frozenset(population(config)["sources"] if config.source.real_people else ())


def whom(cell: Cell, config: Config) -> tuple[str, str]:
    """Whom a cell's releases are about, as an identity and in words.

    Clients that a file names are the same people whatever the seed, and however the population is
    called: a seed only says which of them are declared public.
    """
    source, column = config.names["source"], config.values()["data"].get("client", "")
    people = str(population(config)["unit"])
    if config.real_clients:
        return people, f"clients of {source}" + (f" ({column})" if column else "")
    varied = [f"{k} {text(v)}" for k, v in cell.values.items() if k.startswith("data.")]
    return people, ", ".join(["simulated", *varied, f"seed {cell.seed}"])
