"""A new run: prepared, opened, and played to its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accounting.ledger import Ledger
from privfed.auditing.prior_runs import priors, refuse_once_public
from privfed.config.config import Config
from privfed.plan.prior_spending import Priors
from privfed.ranks import ALONE, Ranks
from privfed.run.ledger_terms import mark_counted, terms, write_companions
from privfed.run.loop import play_to_end
from privfed.run.outcome import Observer, Outcome
from privfed.run.population import load_population
from privfed.run.prepare import prepare
from privfed.run.processes.worker_rank import refuse_ranks
from privfed.run.setup import Setup
from privfed.run.watch.watcher import entered, observers_of
from privfed.run.world import Elsewhere
from privfed.store.checkpoint import Checkpoint
from privfed.store.kept_heads import keep_heads, refuse_unusable_heads
from privfed.store.run_directory import RunDirectory


def train(
    config: Config,
    out: Path,
    observers: Sequence[Observer] = (),
    ranks: Ranks = ALONE,
    elsewhere: Elsewhere | None = None,
) -> Outcome:
    """Train `config` into the new directory `out`, together with all other `ranks`.

    With `elsewhere` clients are at sites on machines of their own, and nobody's data are here.

    Raises `Refused`, having written nothing, where the configuration cannot run.
    """
    refuse_ranks(config, ranks.count)
    refuse_unusable_heads(config.run.heads, out)
    watching = observers_of(config)
    before = priors(config)
    setup = prepare(config, before, load=elsewhere.load if elsewhere else load_population)
    refuse_once_public(before, setup.federation)
    directory = RunDirectory.create(out)
    with directory.locked():
        ledger = begin(setup, before, directory)
        with entered(watching) as others:
            observing = [*observers, *others]
            return play_to_end(setup, directory, ledger, observing, ranks, elsewhere)


def begin(setup: Setup, before: Priors, directory: RunDirectory) -> Ledger:
    """Write what a run has before its first round, into its directory, which is locked."""
    RunDirectory.create(directory.path)  # once more, now that nobody else can begin here
    config = setup.plan.config
    directory.config.write(config)
    write_companions(setup, before, directory)
    if config.chosen is None:  # marks would tell how many candidates there were
        mark_counted(before, directory.path)
    ledger = Ledger.create(directory.ledger, terms(setup, before, directory))
    keep_heads(ledger, config.run.heads)
    Checkpoint.first(setup.initial_state(), ledger.head()).save(directory, setup.network)
    return ledger
