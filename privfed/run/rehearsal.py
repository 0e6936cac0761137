"""Rehearses a run: on another population or with other random numbers, without storage.

A rehearsal executes the same rounds as a run (`privfed.round.round`), but with seeded random
numbers, and charges a temporary ledger: it is a simulation, and no epsilon covers its results. One
assembled setup can be used for any number of rehearsals.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Charge, Ledger
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.round.algorithm import TrainingState
from privfed.round.round import run_round
from privfed.round.world import World
from privfed.run.setup import Setup
from privfed.run.world import build_world
from privfed.secure.summation import Aborted
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory


class NullReleaseStore:
    """A release store that stores nothing, because a rehearsal is never resumed."""

    def write(
        self, charge: Charge, released: list[Tensor], state: Mapping[str, Tensor]
    ) -> None: ...


def rehearse(
    setup: Setup, population: Federation, seed: int, rounds: int | None = None
) -> TrainingState:
    """Executes the run `setup` on `population` with randomness from `seed`; returns its last state.

    The initial model is that of `setup`. Client states are stored in a temporary folder.

    Args:
      setup: the prepared run.
      population: the population.
      seed: seed of all random numbers.
      rounds: number of rounds, whatever the budget; None: `run.rounds`.

    Returns:
      The state after the last round.

    Raises:
      Refused: if the run is attacked; attackers are simulated for the run's own population only.
    """
    config = setup.plan.config
    if setup.attackers:
        raise Refused(
            f"attack.name is {config.names['attack']!r}, but attackers belong to the run's own "
            "population, so a rehearsal on another population is impossible; set "
            "attack.fraction = 0"
        )
    streams = Streams(seed, simulated=True)
    setup = replace(setup, federation=population, streams=streams)
    with tempfile.TemporaryDirectory(prefix="privfed-") as folder:
        directory = RunDirectory.create(Path(folder) / "rehearsal")
        world = _world(setup, directory)
        state = setup.initial_state()
        for round in range(1, (rounds or config.run.rounds) + 1):
            try:
                state = run_round(round, setup.algorithm_in(round), state, world)
            except Aborted:  # the round is consumed, and the model is unchanged
                for memory in world.remembered:
                    memory.discard()
    return state


def _world(setup: Setup, directory: RunDirectory) -> World:
    """The environment of rounds as in a run, without storage."""
    terms = {"id": "rehearsal", "randomness": "seeded", "note": "simulation: a rehearsal"}
    ledger = Ledger.create(directory.ledger, terms)
    begin = Checkpoint.first(setup.initial_state(), ledger.head())
    trainer = replace(setup.executor.trainer, federation=setup.federation)
    executor = replace(setup.executor, trainer=trainer, streams=setup.streams)
    setup = replace(setup, executor=executor)
    return build_world(setup, directory, ledger, begin, store=NullReleaseStore())


def keeping(population: Federation, chosen: NDArray[np.bool_]) -> Federation:
    """Returns `population` with only the examples `chosen` `[N]`; all clients remain.

    A client without examples sends a row of zeros. If rows are summed and divided by a constant, or
    weighted by examples, that is equivalent to its absence. Other rules count the row of zeros.
    """
    owners = np.repeat(np.arange(population.clients), np.diff(population.offsets))
    counts = np.bincount(owners[chosen], minlength=population.clients)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    examples = population.examples.take(np.flatnonzero(chosen))
    return replace(population, examples=examples, offsets=offsets, _stages={})
