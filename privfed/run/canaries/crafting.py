"""Crafting for a run: its canaries' examples, and how those that entered train."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privfed.auditing.canaries.examples import CanaryExamples, made_up
from privfed.auditing.canaries.input_space import space_of
from privfed.auditing.canaries.public_models import (
    public_directions,
    public_examples,
    public_models,
)
from privfed.auditing.canaries.self_influence import SelfInfluence
from privfed.config.sections import Audit
from privfed.data.federation import Federation
from privfed.errors import Refused, ran_out_of_memory
from privfed.local.executor import LocalExecutor
from privfed.models.network import Network
from privfed.run.setup import Setup
from privfed.streams import Keys
from privfed.vector import Indices

_MOST_NUMBERS = 2**30


def refuse_uncraftable(audit: Audit, federation: Federation, network: Network) -> None:
    """Raises `Refused` where no example can be made up for this population, or too many are.

    All examples, and all their gradients, are held in memory.
    """
    space_of(federation)
    numbers = math.prod(federation.examples.x.shape[1:]) * audit.examples
    numbers = max(numbers, network.shapes.length)
    if audit.canaries * numbers > _MOST_NUMBERS:
        raise Refused(
            f"audit.canaries is {audit.canaries}, each of whom takes {numbers:,} numbers in memory "
            f"(audit.examples, or a gradient); expected at most {_MOST_NUMBERS // numbers}"
        )


def crafted(setup: Setup, keys: Keys) -> CanaryExamples:
    """The examples of canaries of this run's kind, one for each of the `keys`.

    Raises `Refused` where nothing can be crafted.
    """
    audit = setup.plan.config.audit
    space, influence = (
        space_of(setup.federation),
        self_influence(setup, setup.network.initial_params),
    )
    try:
        return made_up(keys, audit.examples, audit.craft_steps, space, influence)
    except RuntimeError as error:  # a NotImplementedError, too
        if ran_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        raise Refused(
            f"audit.craft_steps is {audit.craft_steps}, but examples cannot be improved by this "
            f"model's gradients: {reason}; set it to 0, for random ones"
        ) from error


def self_influence(setup: Setup, start: Tensor) -> SelfInfluence:
    """How the worth of canaries is measured in a run from the model `start` `[d]`.

    At public models, with this run's local training.
    """
    config, trainer = setup.plan.config, setup.executor.trainer
    network, public = setup.network, public_examples(setup.federation)
    models = public_models(network, public, start, trainer.lr)
    others = public_directions(network, public, models)
    taken = int(trainer.steps(np.array([config.audit.examples]), trainer.epochs)[0])
    reach = trainer.lr * taken
    enough = float(config.mechanism.clip) / reach if reach else math.inf
    return SelfInfluence(network, models, others, enough, trainer.way == "stacked")


def training_executor(
    setup: Setup, examples: CanaryExamples, numbers: Indices, heads: NDArray[np.bool_]
) -> LocalExecutor:
    """The run's executor over the canaries `numbers` `[c]` in the place of its clients.

    Those whose coin is not `heads` `[c]` hold nothing.
    """
    federation = examples.federation(numbers, heads, setup.federation)
    trainer = replace(setup.executor.trainer, federation=federation)
    return replace(setup.executor, trainer=trainer, weights=())
