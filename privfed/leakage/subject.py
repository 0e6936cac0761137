"""What is attacked: a run's clients, and the model that they are about to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privfed.auditing.prior_runs import priors
from privfed.config.config import Config
from privfed.config.reading import load
from privfed.data.federation import Federation
from privfed.errors import Refused
from privfed.run.prepare import prepare
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory
from privfed.vector import Indices

SIMULATION = "a simulation: it reads clients' own examples, and no ε covers what it shows"


@dataclass(frozen=True)
class Subject:
    """The run or run file at `path`, whose model `params` `[d]` stands after `round` rounds."""

    path: Path
    setup: Setup
    params: Tensor
    round: int

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.setup.plan.config

    @property
    def people(self) -> Federation:
        """The population in the round to come."""
        return self.setup.federation.at(self.round + 1)

    @property
    def lr(self) -> float:
        """The clients' rate in the round to come."""
        executor = self.setup.executor
        return executor.trainer.lr * executor.schedule.factor(self.round + 1)

    def clients_holding(self, least: int) -> Indices:
        """The clients with at least `least` examples, in order. Raises `Refused` for none."""
        ids = np.arange(self.people.clients)
        holders = ids[self.people.sizes(ids) >= least]
        if not len(holders):
            raise Refused(f"no client holds {least} examples; lower --examples")
        return holders


def subject(path: Path, overrides: Sequence[str]) -> Subject:
    """The model of the run directory at `path`, or the start of the run file there.

    Raises `Refused` for what the attacks on updates do not know.
    """
    if not path.is_dir():
        config = load(path, overrides)
        before = priors(config)
        setup = prepare(_one_at_a_time(config), before)
        _refuse_unknown(setup)
        return Subject(path, setup, setup.network.initial_params, 0)
    if overrides:
        raise Refused(
            f"--set changes a run file, and {path} is a run directory: its model was trained as "
            "its config.toml says; leave --set out, or name a run file"
        )
    directory = RunDirectory.open(path)
    config = directory.config.read()
    if not directory.checkpoint.exists():
        raise Refused(f"{path} has no checkpoint: its run had not begun")
    setup = prepare(_one_at_a_time(config), constants=directory.constants.read())
    _refuse_unknown(setup)
    checkpoint = Checkpoint.load(directory, setup.network)
    return Subject(path, setup, checkpoint.state.params, checkpoint.round)


def _one_at_a_time(config: Config) -> Config:
    """`config` with one client at a time on the CPU, so that nothing is measured first."""
    return config.with_run(trainer="loop", chunk=1, device="cpu")


def _refuse_unknown(setup: Setup) -> None:
    """Raises `Refused`, with every reason, where an update is not what is simulated here."""
    config, examples = setup.plan.config, setup.federation.examples
    reasons = []
    if not config.loss.softmax:
        reasons.append(
            f"model.loss is {config.names['loss']!r}; labels are read from the gradients of "
            "'cross_entropy' alone"
        )
    if not examples.x.dtype.is_floating_point or examples.y.dim() > 1:
        reasons.append(
            "examples are tokens or sequences with a label per position; expected numbers, with "
            "one label each: there is no gradient by a token"
        )
    objective = config.objective
    simulated = objective.plain and objective.sends_updates_alone and objective.exchanges == 1
    if not simulated or objective.grouping:
        reasons.append(
            f"client.objective is {config.names['objective']!r}; only plain local SGD is "
            "simulated: set client.objective = 'sgd'"
        )
    if config.compression.compresses:
        reasons.append(
            f"compression.name is {config.names['compression']!r}, and attacks are on whole "
            "updates: set compression.name = 'none'"
        )
    if config.keeping:
        reasons.append(
            f"{config.keeping} has clients keep something between rounds, which is not simulated: "
            "leave it out"
        )
    if config.client_mechanism.private:
        reasons.append(
            "clients train with DP-SGD ([client.privacy]), which is not simulated: leave it out"
        )
    if setup.network.random:
        reasons.append("the model draws while it trains (dropout), which cannot be repeated")
    if reasons:
        raise Refused("\n".join(reasons))


def examples_of(people: Federation, client: int, count: int | None = None) -> tuple[Tensor, Tensor]:
    """The first `count` examples of `client`, or all: x `[n, *features]` and y `[n]`."""
    start, end = (int(place) for place in people.offsets[client : client + 2])
    last = end if count is None else min(start + count, end)
    return people.gather(torch.arange(start, last))
