"""Privfed's rounds one at a time, as in a run: charged and stored durably."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import torch

from accounting.ledger import Ledger
from privfed.round.round import run_round
from privfed.round.world import World
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory


class Running:
    """Rounds of `setup` in their own run directory, which is removed at the end.

    A checkpoint every `checkpoint_every` rounds, as configured, is part of the round it follows.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._folder = TemporaryDirectory()
        self._directory = RunDirectory.create(Path(self._folder.name) / "run")
        self._ledger = Ledger.create(self._directory.ledger, {})
        self.state = setup.initial_state()
        self.round = 0
        self._world = World(
            executor=setup.executor,
            population=setup.federation.population(),
            ledger=self._ledger,
            store=self._directory.releases,
            streams=setup.streams,
            layers=setup.network.shapes.sizes,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def go(self, rounds: int = 1) -> list[float]:
        """Runs `rounds` more rounds, and returns their seconds."""
        torch.set_num_threads(self.setup.plan.config.run.threads)
        every = self.setup.plan.config.run.checkpoint_every
        taken = []
        for _ in range(rounds):
            began = time.perf_counter()
            self.round += 1
            self.state = run_round(self.round, self.setup.algorithm, self.state, self._world)
            if self.round % every == 0:
                done = Checkpoint(self.round, self.round, self.state, self._ledger.head())
                done.save(self._directory, self.setup.network)
            taken.append(time.perf_counter() - began)
        return taken
