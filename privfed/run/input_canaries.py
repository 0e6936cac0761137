"""Canaries that train in a run: their examples are crafted before its first charge."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privfed.auditing.canaries.clients import WithoutCanaries
from privfed.auditing.canaries.inclusion import canary_inclusion, in_population, number_of_nothing
from privfed.auditing.canaries.input_space import space_of
from privfed.auditing.canaries.learned import (
    CanaryExamples,
    Learning,
    WithTraining,
    public_directions,
    public_examples,
    public_models,
    synthetic,
    with_trainees,
)
from privfed.auditing.canaries.log import FINAL, CanaryLog
from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.client.autotune import first_broadcast
from privfed.client.executor import LocalExecutor
from privfed.config.sections import Audit
from privfed.core.errors import Refused, ran_out_of_memory
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Indices
from privfed.data.federation import Federation
from privfed.models.network import Network
from privfed.privacy.clipping import clip_rows
from privfed.round.world import World
from privfed.run.setup import Setup
from privfed.store.run_directory import RunDirectory
from privfed.store.run_files import CanaryFile
from privfed.store.tensorfile import misfits_are_broken

_MOST_NUMBERS = 2**30


def refuse_uncraftable(audit: Audit, federation: Federation, network: Network) -> None:
    """Raises `Refused` if canaries' examples cannot be generated, or are too large for memory.

    All examples, and all their gradients, are in memory at once: at most 2^30 numbers of each.
    """
    space_of(federation)
    numbers = math.prod(federation.examples.x.shape[1:]) * audit.examples
    numbers = max(numbers, network.shapes.length)
    if audit.canaries * numbers > _MOST_NUMBERS:
        raise Refused(
            f"audit.canaries is {audit.canaries}, but each canary takes {numbers:,} numbers in "
            f"memory (audit.examples, or a gradient); expected at most {_MOST_NUMBERS // numbers}"
        )


def crafted(setup: Setup, keys: Keys) -> CanaryExamples:
    """Returns the examples of canaries for this run, one canary for each of `keys`.

    Raises `Refused` if examples cannot be improved by the model's gradients.
    """
    audit = setup.plan.config.audit
    space, influence = (
        space_of(setup.federation),
        self_influence(setup, setup.network.initial_params),
    )
    try:
        return synthetic(keys, audit.examples, audit.craft_steps, space, influence)
    except RuntimeError as error:  # a NotImplementedError, too
        if ran_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        raise Refused(
            f"audit.craft_steps is {audit.craft_steps}, but examples cannot be improved by this "
            f"model's gradients ({reason}); set audit.craft_steps to 0, for random examples"
        ) from error


def self_influence(setup: Setup, start: Tensor) -> SelfInfluence:
    """Returns the function that scores canaries in a run whose initial model is `start` `[d]`.

    The score is computed at public models, for the run's local training.
    """
    config, trainer = setup.plan.config, setup.executor.trainer
    network, public = setup.network, public_examples(setup.federation)
    models = public_models(network, public, start, trainer.lr)
    others = public_directions(network, public, models)
    taken = int(trainer.steps(np.array([config.audit.examples]), trainer.epochs)[0])
    reach = trainer.lr * taken
    enough = float(config.mechanism.clip) / reach if reach else math.inf
    stacked = trainer.way == "stacked" and not network.recurrent  # which has one gradient only
    return SelfInfluence(network, models, others, enough, stacked)


def training_executor(
    setup: Setup, examples: CanaryExamples, numbers: Indices, heads: NDArray[np.bool_]
) -> LocalExecutor:
    """Returns an executor like the run's, for the canaries `numbers` `[c]` instead of its clients.

    A canary whose inclusion bit in `heads` `[c]` is 0 has no examples.
    """
    federation = examples.federation(numbers, heads, setup.federation)
    trainer = replace(setup.executor.trainer, federation=federation)
    return replace(setup.executor, trainer=trainer, weights=())


_MEASURED, _ONE_BY_ONE = 32, 8
"""Number of canaries crafted for the measurement, and the number for models that cannot
be stacked.
"""


@dataclass(frozen=True)
class CanaryUpdates:
    """Statistics of canaries' clipped updates from the initial model.

    `norm` is the root mean squared norm of the updates, and `common` the norm of their mean.
    Crafting the examples of one canary takes `seconds` on this machine.
    """

    norm: float
    common: float
    seconds: float

    def total(self, sending: float) -> float:
        """Approximate norm of the sum of canaries' updates, of which `sending` are expected."""
        return float(np.hypot(np.sqrt(sending) * self.norm, sending * self.common))


def canary_updates(setup: Setup) -> CanaryUpdates | None:
    """Measures updates of a few canaries from the initial model; None if none train on examples.

    These are not the run's own canaries, which derive from a key that is secret until the run ends.
    Raises `Refused` as `crafted` does.
    """
    config = setup.plan.config
    if not config.audit.by_inputs:
        return None
    stacked = setup.executor.trainer.way == "stacked"
    count = min(_MEASURED if stacked else _ONE_BY_ONE, config.audit.canaries)
    numbers = np.arange(count)
    began = time.perf_counter()
    examples = crafted(setup, setup.streams.at("measure/examples", clients=numbers))
    seconds = (time.perf_counter() - began) / count
    trainer = training_executor(setup, examples, numbers, numbers >= 0).trainer
    keys = setup.streams.at("measure", 0, numbers)
    rows, _ = trainer.train(numbers, first_broadcast(trainer), None, keys)
    rows = clip_rows(rows, float(config.mechanism.clip)).rows.double()
    norm, common = rows.square().sum(1).mean().sqrt(), torch.linalg.vector_norm(rows.mean(0))
    return CanaryUpdates(float(norm), float(common), seconds)


class RunCanaries(Protocol):
    """The canaries of a run, and the log of the observations about each canary."""

    def hear(self, round: int, released: list[Tensor]) -> None:
        """Logs the observations of `released`, the stored releases of a replayed `round`.

        If a round has several records, the last one counts.
        """

    def end(self, params: Tensor) -> None:
        """Logs the observations of the final model `params` `[d]` at the end of the run."""


@dataclass(frozen=True)
class InputCanaries:
    """A run's canaries that train, and the log of the final model's scores on their examples."""

    learning: Learning
    log: CanaryLog

    def hear(self, round: int, released: list[Tensor]) -> None:
        """Records nothing, since the adversary of these canaries sees only the final model."""

    def end(self, params: Tensor) -> None:
        """Logs the score of the final model `params` `[d]` on each canary's examples."""
        self.log.append(FINAL, np.append(1.0, self.learning.scores(params)))


def with_input_canaries(
    world: World, setup: Setup, directory: RunDirectory
) -> tuple[World, InputCanaries]:
    """Appends canaries with crafted examples to the clients of `world`; returns world and canaries.

    The examples are crafted when the run begins, from its secret key, and stored under private/: a
    resumed run has the same ones.
    """
    learning = _learning(setup, CanaryFile(directory.canary_examples), world.streams)
    inclusion = canary_inclusion(len(learning.examples), world.streams)
    log = CanaryLog(directory.canaries, len(inclusion))
    log.begin(inclusion, 0)  # its scores are not cosines of d dimensions
    there, clients = in_population(inclusion, setup.plan.event.relation), setup.federation.clients
    training = training_executor(setup, learning.examples, there, inclusion[there])
    nothing = number_of_nothing(setup.plan.cost.rule)
    joined = replace(
        world,
        executor=WithTraining(world.executor, training, clients, ~inclusion[there], nothing),
        population=with_trainees(world.population, there, setup.plan.config.data.sites),
        watch=WithoutCanaries(world.watch, clients) if world.watch else None,
    )
    return joined, InputCanaries(learning, log)


def _learning(setup: Setup, file: CanaryFile, streams: Streams) -> Learning:
    """Returns the canaries' examples and initial model from `file`; writes the file if missing."""
    if not file.exists():
        numbers = np.arange(setup.plan.config.audit.canaries)
        made = crafted(setup, streams.at("canaries/examples", clients=numbers))
        file.write({"x": made.x, "y": made.y, "start": setup.network.initial_params})
    with misfits_are_broken(file.path):
        tensors = file.read(setup.network.initial_params.device)
        examples = CanaryExamples(tensors["x"], tensors["y"])
        return Learning(examples, self_influence(setup, tensors["start"]))
