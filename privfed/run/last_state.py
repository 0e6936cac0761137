"""Restores an interrupted run: its last checkpoint, and the releases after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from accounting.ledger import Charge, Ledger
from privfed.core.errors import Broken
from privfed.plan.rule import numbers_per_history
from privfed.round.algorithm import TrainingState
from privfed.round.round import replay
from privfed.run.setup import Setup
from privfed.run.world import keeps_key, keeps_states
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import misfits_are_broken


def refuse_lost(setup: Setup, directory: RunDirectory, ledger: Ledger) -> None:
    """Raises `Broken` if a charged run lacks a file of private/ that cannot be recreated.

    All of these files exist, durably, before the first charge; until then, missing ones are
    recreated.
    """
    if not ledger.charges:
        return
    lost = {path: what for path, what in _kept(setup, directory) if not path.is_file()}
    if lost:
        raise Broken("\n".join((*_losses(lost), *_ways_on(directory))))


def _kept(setup: Setup, directory: RunDirectory) -> Iterator[tuple[Path, str]]:
    """Yields each file of the run that cannot be recreated, with a description of its content."""
    sampler, mechanism = setup.algorithm.sampler, setup.algorithm.mechanism
    if keeps_key(setup):
        follows = {
            "the noise of past rounds, which later rounds would cancel": mechanism.remembers,
            "the participation schedule, on which charges depend": sampler.remembers,
            "the canaries' inclusion bits": setup.plan.config.audit.canaries > 0,
        }
        yield (
            directory.key.path,
            ", and ".join(what for what, applies in follows.items() if applies),
        )
    if keeps_states(setup):
        yield directory.states, "the clients' states, without which clients train differently"
    if numbers_per_history(setup.plan.config, setup.network.shapes.length):
        yield directory.histories, "the rule's history of clients, on which its decisions depend"
    if setup.plan.config.audit.by_inputs:
        yield directory.canary_examples, "the examples that canaries trained on"
    if setup.plan.config.audit.canaries:
        yield (
            directory.canaries,
            "the canaries' observations of past rounds, without which ε is not tested",
        )


def _losses(lost: Mapping[Path, str]) -> Iterator[str]:
    yield "this run cannot be resumed; some of its private state is missing:"
    for path, what in lost.items():
        yield f"{path}: {what}"


def _ways_on(directory: RunDirectory) -> Iterator[str]:
    run, round = str(directory.path), directory.checkpoint.round()
    yield (
        "Restore private/ as it was when the run stopped (with an older copy, two models would get "
        "the same noise)."
    )
    yield (
        f"Without private/, the model of round {round} and the ledger stay valid: they can be "
        "evaluated, exported and audited. A new run may start from them, and counts the spent "
        f"budget, by privacy.prior = {json.dumps([run])} and model.init = {json.dumps(run)}"
    )


def state_from_releases(
    charge: Charge, setup: Setup, state: TrainingState, directory: RunDirectory
) -> TrainingState | None:
    """The state after a charged round, from its stored releases; None if one of them is missing.

    Raises `Broken` for a release of another charge, or of another shape.
    """
    stored = directory.releases.read(charge.round, state.params.device)
    if stored is None:
        return None
    if stored.charge != charge.hash:
        raise Broken(
            f"{directory.path}: the release of round {charge.round} does not belong to its charge; "
            "restore the directory, which was edited"
        )
    released = stored.released
    algorithm = setup.algorithm_in(charge.round)
    if len(released) < algorithm.exchanges:
        return None
    with misfits_are_broken(directory.releases.path_of(charge.round)):
        after = replay(algorithm, charge.round, state, released)
        if _form(stored.mechanism) != _form(after.mechanism):
            raise ValueError("state of another form than the mechanism's")
    return replace(after, mechanism=stored.mechanism)


def last_checkpoint(setup: Setup, directory: RunDirectory, ledger: Ledger) -> Checkpoint:
    """The last checkpoint.

    Raises `Broken` if the ledger lacks the checkpoint's last charge, or if a state in it has
    another shape or type than this run's.
    """
    checkpoint = Checkpoint.load(directory, setup.network, setup.network.initial_params.device)
    if not ledger.holds(checkpoint.head):
        raise Broken(
            f"{directory.ledger} ends before the checkpoint's last charge, so charges were removed "
            "and the epsilon of this run has no proof; restore the ledger"
        )
    fresh = setup.initial_state()
    for kind in ("server", "mechanism", "objective", "rule", "earlier"):
        stored, expected = getattr(checkpoint.state, kind), getattr(fresh, kind)
        if _form(stored) != _form(expected):
            raise Broken(
                f"{directory.path}: the checkpoint's {kind} state is {_form(stored)}; expected "
                f"{_form(expected)}: restore the directory"
            )
    return checkpoint


def _form(state: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in state.items()}
