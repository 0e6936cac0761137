"""Starts or resumes a run, and executes its rounds to the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accounting.guarantee import spent
from accounting.ledger import Ledger
from privfed.auditing.prior_runs import priors, refuse_once_public
from privfed.config.config import Config
from privfed.config.overrides import assign
from privfed.config.reading import reassembled
from privfed.core.errors import Broken, Refused
from privfed.core.ranks import SINGLE_PROCESS, Ranks
from privfed.data.source import UserObjectSource
from privfed.plan.composed_guarantees import counted_priors
from privfed.plan.plan import Plan
from privfed.plan.prior_spending import Priors
from privfed.run.last_state import refuse_lost
from privfed.run.ledger_terms import (
    mark_counted,
    refuse_grown,
    refuse_other_code,
    terms,
    write_companions,
)
from privfed.run.loop import Loop, playing
from privfed.run.outcome import Observer, Outcome
from privfed.run.population import Loader, load_population
from privfed.run.prepare import prepare
from privfed.run.process_group import refuse_ranks
from privfed.run.setup import Setup
from privfed.run.watch.watcher import entered, observers_of
from privfed.run.world import Elsewhere
from privfed.store.checkpoint import Checkpoint
from privfed.store.kept_heads import keep_heads, refuse_unusable_heads
from privfed.store.run_directory import RunDirectory


def allowed_change(stored: Config, wanted: Config) -> Config:
    """Returns `wanted` with the values that the run measured, chose or solved for, from `stored`.

    Raises `Refused`, naming each key that was changed but may not change.
    """
    for key, unset in (("trainer", "auto"), ("chunk", 0), ("precision", "fast")):
        if getattr(wanted.run, key) == unset:
            wanted = wanted.with_run(**{key: getattr(stored.run, key)})
    if wanted.open:
        raw = wanted.raw()
        for target in wanted.open:
            assign(raw, target, _flat(stored)[target])
        wanted = reassembled(raw, stored)
    wanted = replace(wanted, noise_multiplier=stored.noise_multiplier)
    if wanted.run.rounds < stored.run.rounds:
        raise Refused(
            f"run.rounds is {wanted.run.rounds}, but this run was started with "
            f"{stored.run.rounds}; raise run.rounds, or leave it as it was"
        )
    if stored.chosen and wanted.run.rounds != stored.run.rounds:
        raise Refused(
            "run.rounds is changed, but private tuning chose this run among several candidates, "
            "and its ε covers only as many rounds as each candidate had; start a new run, with "
            "this run in privacy.prior and model.init"
        )
    before, after = _flat(stored), _flat(wanted)
    changed = [
        f"{key} was {before.get(key)!r} and is now {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in ("run.rounds", "privacy.epsilon")
    ]
    if changed:
        raise Refused(
            f"a resumed run keeps its configuration, but {'; '.join(changed)}; change only "
            "run.rounds (upward) or privacy.epsilon, or start a new run"
        )
    return wanted


def _flat(config: Config) -> dict[str, Any]:
    values = config.values().items()
    return {f"{name}.{key}": value for name, keys in values for key, value in keys.items()}


def reopen(directory: RunDirectory, setup: Setup, terms: Mapping[str, Any]) -> Ledger:
    """Returns the ledger of an existing run, or a new one if a crash left none or an empty one.

    Raises `Broken` unless the ledger, the configuration and the run's other files fit together.
    """
    ledger = Ledger.recover(directory.ledger) if directory.ledger.exists() else None
    if ledger is None or not ledger.opened:
        if directory.began():
            raise Broken(
                f"{directory.ledger} is missing or empty, but the run has begun; restore the ledger"
            )
        directory.ledger.unlink(missing_ok=True)
        ledger = Ledger.create(directory.ledger, terms)
    if ledger.terms.get("config") != directory.config.digest():
        raise Broken(
            f"{directory.path}: config.toml does not match the ledger, so the file was edited; "
            "restore config.toml, or start a new run"
        )
    keep_heads(ledger, setup.plan.config.run.heads)
    if ledger.terms.get("files", {}) != directory.companions():
        raise Broken(
            f"{directory.path}: the frozen part of the model, or the list of public clients, does "
            "not match the ledger; restore the directory, which was edited"
        )
    if not directory.checkpoint.exists():
        if ledger.terms.get("start") != terms["start"]:
            raise Broken(
                f"{directory.path}: model.init is not the file (or the module does not have the "
                "weights) that the ledger states; restore the former file"
            )
        if ledger.charges:
            raise Broken(
                f"{directory.path} has charges in its ledger, but no checkpoint; restore the "
                "checkpoint"
            )
        first = Checkpoint.first(setup.initial_state(), ledger.head())
        first.save(directory, setup.network)
    return ledger


def reassemble(
    wanted: Config, directory: RunDirectory, load: Loader = load_population
) -> tuple[Setup, Ledger]:
    """Returns the setup of an existing run, rebuilt from `wanted`, and its opened ledger.

    Args:
      wanted: the configuration to run with.
      directory: the run directory.
      load: loads the population.

    Raises:
      Refused: if the run cannot continue with this configuration or these data.
      Broken: if its directory was edited.
    """
    stored = Ledger.load(directory.ledger) if directory.ledger.exists() else None
    if stored is not None and stored.opened:
        if wanted.run.rounds > max((charge.round for charge in stored.charges), default=0):
            directory.refuse_if_counted()
        before, why = counted_priors(stored.terms)
        if why:
            raise Refused(f"{directory.path} cannot be resumed: {why}; start a new run")
        refuse_grown(before)
    else:
        before = priors(wanted)
        if wanted.chosen is None:
            mark_counted(before, directory.path)
    constants = directory.constants.read() if directory.checkpoint.exists() else None
    setup = prepare(wanted, before, constants, load)
    if stored is None or not stored.opened:
        refuse_once_public(before, setup.federation)
        write_companions(setup, before, directory)
        return setup, reopen(directory, setup, terms(setup, before, directory))
    refuse_other_code(wanted, stored.terms)
    if isinstance(wanted.source, UserObjectSource):
        directory.population.refuse_others((setup.federation.examples, setup.federation.test))
    if sorted(directory.public_clients.of_this_run()) != sorted(setup.federation.public):
        raise Refused(
            f"{directory.path}: the public clients differ from the ledger's, because the data have "
            "changed; restore the data, or start a new run with this run in privacy.prior"
        )
    return setup, reopen(directory, setup, terms(setup, before, directory))


def resume(
    path: Path | RunDirectory,
    change: Callable[[Config], Config],
    observers: Sequence[Observer] = (),
    ranks: Ranks = SINGLE_PROCESS,
    elsewhere: Elsewhere | None = None,
) -> Outcome:
    """Resumes the run at `path`, with the noise multiplier it was started with.

    Only `run.rounds` (upward) and `privacy.epsilon` may change.

    Args:
      path: directory of the run.
      change: maps the stored configuration to the wanted one.
      observers: observers of rounds, in addition to those of `run.watch`.
      ranks: the processes of the run.
      elsewhere: sites on other machines, if the run has them.

    Returns:
      The outcome of the run.

    Raises:
      Refused: for any other change of the configuration, or if the run cannot continue.
      Broken: if the directory was edited, or private state is missing.
      TooManyByzantine: after saving, if identified Byzantine parties ended the run.
    """
    with resumed(path, change, observers, ranks, elsewhere) as loop:
        return loop.to_end()


@contextlib.contextmanager
def resumed(
    path: Path | RunDirectory,
    change: Callable[[Config], Config],
    observers: Sequence[Observer] = (),
    ranks: Ranks = SINGLE_PROCESS,
    elsewhere: Elsewhere | None = None,
) -> Iterator[Loop]:
    """Returns a context manager for an existing run's loop; arguments are those of `resume`."""
    directory = RunDirectory.open(path)
    with directory.locked():
        directory.recover()
        stored = directory.config.read()
        wanted = allowed_change(stored, change(stored))
        refuse_ranks(wanted, ranks.count)
        watching = observers_of(wanted)
        load = elsewhere.load if elsewhere else load_population
        setup, ledger = reassemble(wanted, directory, load)
        refuse_lost(setup, directory, ledger)
        _refuse_less_than_spent(setup.plan, ledger)
        setup = _state_budget(setup, stored.privacy.epsilon, directory, ledger)
        if wanted.values() != stored.values():
            directory.config.change(wanted.run.rounds, wanted.privacy.epsilon)
        with entered(watching) as others:
            observing = [*observers, *others]
            with playing(setup, directory, ledger, observing, ranks, elsewhere) as loop:
                yield loop


def _state_budget(
    setup: Setup, stored: float | None, directory: RunDirectory, ledger: Ledger
) -> Setup:
    """Writes a changed budget to the ledger before it applies.

    Returns `setup` with all budgets that the ledger states. An older ledger does not state the
    first budget, which the `stored` configuration has.
    """
    plan, last = setup.plan, stored if ledger.budget is None else ledger.budget
    if plan.budget is not None and last is not None and plan.budget != last:
        directory.refuse_if_counted()
        ledger.change_budget(last, plan.budget, plan.event)
    return replace(setup, plan=replace(plan, budgets=ledger.budgets))


def _refuse_less_than_spent(plan: Plan, ledger: Ledger) -> None:
    privacy = plan.config.privacy
    so_far = spent(ledger, privacy.delta, privacy.accountant).epsilon
    if plan.budget is not None and so_far > plan.budget:
        raise Refused(
            f"privacy.epsilon is {plan.budget:g}, but this run has already spent {so_far:g}; set "
            "at least that, since a release cannot be undone, or restore the key's former value"
        )


def train(
    config: Config,
    out: Path,
    observers: Sequence[Observer] = (),
    ranks: Ranks = SINGLE_PROCESS,
    elsewhere: Elsewhere | None = None,
) -> Outcome:
    """Trains the model of `config` in the new directory `out`, together with all other `ranks`.

    Args:
      config: the configuration of the run.
      out: directory of the run, which must not exist or must be empty.
      observers: observers of rounds, in addition to those of `run.watch`.
      ranks: the processes of the run.
      elsewhere: sites on other machines, which have all client data; None if there are none.

    Returns:
      The outcome of the run.

    Raises:
      Refused: with nothing written, if the configuration cannot run; later, if training diverges.
      TooManyByzantine: after saving, if identified Byzantine parties ended the run.
    """
    with started(config, out, observers, ranks, elsewhere) as loop:
        return loop.to_end()


@contextlib.contextmanager
def started(
    config: Config,
    out: Path,
    observers: Sequence[Observer] = (),
    ranks: Ranks = SINGLE_PROCESS,
    elsewhere: Elsewhere | None = None,
) -> Iterator[Loop]:
    """Returns a context manager for a new, uncharged run's loop, with the arguments of `train`."""
    refuse_ranks(config, ranks.count)
    refuse_unusable_heads(config.run.heads, out)
    watching = observers_of(config)
    before = priors(config)
    load = elsewhere.load if elsewhere else load_population
    setup = prepare(config, before, load=load, trying=partial(_choosing, observers))
    refuse_once_public(before, setup.federation)
    directory = RunDirectory.create(out)
    with directory.locked():
        ledger = begin(setup, before, directory)
        with entered(watching) as others:
            observing = [*observers, *others]
            with playing(setup, directory, ledger, observing, ranks, elsewhere) as loop:
                yield loop


def _choosing(observers: Sequence[Observer], key: str, number: int, count: int) -> None:
    """Notifies `observers` that value `number` of `count` of `key` is tried."""
    for observer in observers:
        observer.choosing(key, number, count)


def begin(setup: Setup, before: Priors, directory: RunDirectory) -> Ledger:
    """Writes a new run's files into its locked directory, and returns its ledger."""
    RunDirectory.create(directory.path)  # once more, now that no other process can begin here
    config = setup.plan.config
    directory.config.write(config)
    write_companions(setup, before, directory)
    if config.chosen is None:  # marks would reveal the number of candidates
        mark_counted(before, directory.path)
    ledger = Ledger.create(directory.ledger, terms(setup, before, directory))
    keep_heads(ledger, config.run.heads)
    Checkpoint.first(setup.initial_state(), ledger.head()).save(directory, setup.network)
    return ledger
