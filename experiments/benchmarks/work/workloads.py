"""The workloads of timed rounds: a small convex model, and networks for images and characters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.benchmarks.work.task import Task
from privfed.config.reading import load
from privfed.core.streams import Streams
from privfed.run.prepare import prepare
from privfed.run.setup import Setup

MADE_UP = "experiments.benchmarks.work.synthetic"
NO_DP = ("privacy.mechanism=none", "aggregation.weights=uniform")
SAME_FOR_ALL = (
    "run.rounds=9999",
    "server.optimizer=fedavg",
    "server.lr=1.0",
    "cohort.sampler=fixed_size",
    "client.epochs=1",
    "client.batch_size=10",
    "privacy.noise_multiplier=1.0",
    "privacy.clip=0.4",
)


@dataclass(frozen=True)
class Workload:
    """A named task: overrides of the default run, and the rounds of one timing.

    `model` is a name in `task.MODELS`. `workers` are further numbers of processes to try.
    `trainers` are the possible ways of training.
    """

    name: str
    settings: tuple[str, ...]
    rounds: int
    workers: tuple[int, ...] = ()
    model: str = "logistic"
    trainers: tuple[str, ...] = ("stacked", "loop")

    def setup(self, *overrides: str) -> Setup:
        """Returns the run of this work, ready to start."""
        return prepare(load(None, (*SAME_FOR_ALL, *self.settings, *overrides)))

    @property
    def cohort(self) -> int:
        """The number of clients in a round."""
        sizes = [text for text in self.settings if text.startswith("cohort.size=")]
        return int(sizes[-1].partition("=")[2])

    def with_(self, *settings: str) -> Workload:
        return replace(self, settings=(*self.settings, *settings))


LOGISTIC = Workload(
    "logistic",
    (
        "data.source=synthetic",
        "data.clients=1000",
        "data.size_min=20",
        "data.size_mean=2.0",
        "data.size_std=0.5",
        "cohort.size=100",
        "client.lr=0.05",
    ),
    20,
)
CNN = Workload(
    "CNN",
    (
        f"data.source={MADE_UP}:Images",
        "model.name=experiments.benchmarks.work.task:convolutional",
        "data.clients=200",
        "cohort.size=50",
        "client.lr=0.05",
    ),
    3,
    workers=(2,),
    model="convolutional",
)
TRANSFORMER = Workload(
    "transformer",
    (
        f"data.source={MADE_UP}:Characters",
        "model.name=experiments.benchmarks.work.characters:CausalTransformer",
        "data.clients=200",
        "cohort.size=50",
        "client.lr=0.5",
    ),
    3,
    workers=(2,),
    model="transformer",
)
LSTM = Workload(
    "LSTM",
    (
        f"data.source={MADE_UP}:Characters",
        "model.name=experiments.benchmarks.work.characters:Recurrent",
        "data.clients=200",
        "cohort.size=50",
        "client.lr=0.5",
    ),
    3,
    workers=(2,),
    model="recurrent",
)
GRU = replace(
    LSTM,
    name="GRU",
    settings=tuple(text.replace(":Recurrent", ":Gated") for text in LSTM.settings),
    model="gated",
)
WORKLOADS = (LOGISTIC, CNN, TRANSFORMER, LSTM, GRU)
MANY = Workload(
    "many",
    (f"data.source={MADE_UP}:Many", "cohort.sampler=poisson", "cohort.size=100"),
    10,
)


def cohorts(setup: Setup, rounds: int) -> NDArray[np.int64]:
    """Returns the clients of each of `rounds` rounds `[rounds, n]`, identical for all
    contenders.
    """
    sampler, population = setup.algorithm.sampler, setup.federation.population()
    streams = Streams(0, simulated=True)
    drawn = (sampler.sample(t, len(population), population, streams) for t in range(1, rounds + 1))
    return np.stack([cohort.clients for cohort in drawn])


def task(workload: Workload, rounds: int, *overrides: str) -> Task:
    """Returns the work as plain arrays, for programs without privfed."""
    setup = workload.setup(*overrides)
    examples = setup.federation.examples
    if not isinstance(examples.x, torch.Tensor):
        raise TypeError("these examples are mapped from a file; benchmarks hold theirs in memory")
    return Task(
        workload.name,
        workload.model,
        setup.network.loss.width(examples),
        examples.x.numpy(),
        examples.y.numpy(),
        setup.federation.offsets,
        cohorts(setup, rounds),
        setup.network.initial_params.numpy(),
        setup.plan.config.client.lr,
        setup.plan.config.client.batch_size,
        getattr(setup.plan.mechanism, "clip", 0.0),
        setup.plan.noise_multiplier or 0.0,
    )
