"""Canaries that train in a run: crafted before its first charge, scored by its final model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from privfed.auditing.canaries.clients import WithoutCanaries
from privfed.auditing.canaries.coins import canary_coins, in_population, number_of_nothing
from privfed.auditing.canaries.examples import CanaryExamples
from privfed.auditing.canaries.learned import Learning
from privfed.auditing.canaries.log import FINAL, CanaryLog
from privfed.auditing.canaries.training import WithTraining, with_trainees
from privfed.round.world import World
from privfed.run.canaries.crafting import crafted, self_influence, training_executor
from privfed.run.setup import Setup
from privfed.store.canary_file import CanaryFile
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import misfits_are_broken
from privfed.streams import Streams


@dataclass(frozen=True)
class InputCanaries:
    """A run's canaries that train, and the log that their scores by the final model go to."""

    learning: Learning
    log: CanaryLog

    def hear(self, round: int, released: list[Tensor]) -> None:
        """Take no note: whom these canaries stand against sees the final model only."""

    def end(self, params: Tensor) -> None:
        """Note what the final model `[d]` has learned of each canary's examples."""
        self.log.append(FINAL, np.append(1.0, self.learning.scores(params)))


def with_input_canaries(
    world: World, setup: Setup, directory: RunDirectory
) -> tuple[World, InputCanaries]:
    """The world with canaries behind its clients, which train on examples of their own.

    These are made when the run begins, from its secret key, and then lie under private/: a run that
    goes on has the same ones.
    """
    learning = _learning(setup, CanaryFile(directory.canary_examples), world.streams)
    coins = canary_coins(len(learning.examples), world.streams)
    log = CanaryLog(directory.canaries, len(coins))
    log.begin(coins, 0)  # its scores are no cosines of d dimensions
    there, clients = in_population(coins, setup.plan.event.relation), setup.federation.clients
    training = training_executor(setup, learning.examples, there, coins[there])
    nothing = number_of_nothing(setup.plan.cost.rule)
    joined = replace(
        world,
        executor=WithTraining(world.executor, training, clients, ~coins[there], nothing),
        people=with_trainees(world.people, there, setup.plan.config.data.sites),
        watch=WithoutCanaries(world.watch, clients) if world.watch else None,
    )
    return joined, InputCanaries(learning, log)


def _learning(setup: Setup, file: CanaryFile, streams: Streams) -> Learning:
    """The canaries' examples and the start that they were crafted at; made where there are none."""
    if not file.exists():
        numbers = np.arange(setup.plan.config.audit.canaries)
        made = crafted(setup, streams.at("canaries/examples", clients=numbers))
        file.write({"x": made.x, "y": made.y, "start": setup.network.initial_params})
    with misfits_are_broken(file.path):
        tensors = file.read(setup.network.initial_params.device)
        examples = CanaryExamples(tensors["x"], tensors["y"])
        return Learning(examples, self_influence(setup, tensors["start"]))
