"""What canaries that train move, measured before the run on public quantities."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from privfed.local.autotune import first_broadcast
from privfed.privacy.clipping import clip_rows
from privfed.run.canaries.crafting import crafted, training_executor
from privfed.run.setup import Setup

_MEASURED, _ONE_BY_ONE = 32, 8
"""How many canaries are made up to measure, and how many of models that are no one batch."""


@dataclass(frozen=True)
class CanaryUpdates:
    """Clipped updates of canaries at the start: the root of their mean squared norm is `norm`.

    `common` is the norm of their mean, which is the same in every round. To make up the examples of
    one takes `seconds` here.
    """

    norm: float
    common: float
    seconds: float

    def total(self, sending: float) -> float:
        """The expected norm of the sum of `sending` of them in expectation, drawn by coins."""
        return float(np.hypot(np.sqrt(sending) * self.norm, sending * self.common))


def canary_updates(setup: Setup) -> CanaryUpdates | None:
    """Train a few canaries like the run's from the public start; None where no canary trains.

    Not the run's own: those follow from a key that is secret until the run ends. Raises `Refused`
    where nothing can be crafted.
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
