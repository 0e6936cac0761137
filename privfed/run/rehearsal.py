"""A run as it would be, on other people or with other coins: nothing is kept but how it ends.

A rehearsal goes through the very rounds of a run (`privfed.round.round`), but by seeded coins, and
pays into a ledger of its own that nobody reads: it is a simulation, and no epsilon covers what it
shows.
What has been assembled once serves any number of them.
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


class Forgetful:
    """A release store that keeps nothing: a rehearsal is never resumed."""

    def write(
        self, charge: Charge, released: list[Tensor], state: Mapping[str, Tensor]
    ) -> None: ...


def rehearse(
    setup: Setup, people: Federation, seed: int, rounds: int | None = None
) -> TrainingState:
    """How the run of `setup` ends on `people`, with all its coins from `seed`.

    The model starts where that of `setup` does. What clients keep between rounds lies in a
    temporary folder while it goes on. `rounds` (default: as configured) ignore the budget. Raises
    `Refused` where the run is attacked: attackers are simulated for the run's own people only.
    """
    config = setup.plan.config
    if setup.attackers:
        raise Refused(
            f"attack.attack is {config.names['attack']!r}: simulated attackers belong to the run's "
            "own population, and no other one can be rehearsed with them; set attack.fraction = 0"
        )
    streams = Streams(seed, simulated=True)
    setup = replace(setup, federation=people, streams=streams)
    with tempfile.TemporaryDirectory(prefix="privfed-") as folder:
        directory = RunDirectory.create(Path(folder) / "rehearsal")
        world = _world(setup, directory)
        state = setup.initial_state()
        for round in range(1, (rounds or config.run.rounds) + 1):
            try:
                state = run_round(round, setup.algorithm_in(round), state, world)
            except Aborted:  # the round is consumed, and the model stays as it was
                for memory in world.remembered:
                    memory.discard()
    return state


def _world(setup: Setup, directory: RunDirectory) -> World:
    """Where the rounds happen: as in a run, but for what is kept."""
    terms = {"id": "rehearsal", "randomness": "seeded", "note": "simulation: a rehearsal"}
    ledger = Ledger.create(directory.ledger, terms)
    begin = Checkpoint.first(setup.initial_state(), ledger.head())
    trainer = replace(setup.executor.trainer, federation=setup.federation)
    executor = replace(setup.executor, trainer=trainer, streams=setup.streams)
    setup = replace(setup, executor=executor)
    return build_world(setup, directory, ledger, begin, store=Forgetful())


def keeping(people: Federation, chosen: NDArray[np.bool_]) -> Federation:
    """`people` with those of their examples alone that are `chosen` `[N]`; clients stay, if empty.

    An empty client sends a zero row. Where rows are summed and divided by a constant, or weighed by
    examples, that is as if it were not there; for other rules it is there, and contributes zero.
    """
    owners = np.repeat(np.arange(people.clients), np.diff(people.offsets))
    counts = np.bincount(owners[chosen], minlength=people.clients)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    examples = people.examples.take(np.flatnonzero(chosen))
    return replace(people, examples=examples, offsets=offsets, _stages={})
