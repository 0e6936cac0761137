"""The target of an attack: a run's clients, the model that they receive next, and views of updates.

A view is an adversary's observation of a client's update: raw, clipped, noised, or in a sum of
several updates.

Noise is evaluated for the adversary against which epsilon is stated: a reader of the released
aggregate who knows and subtracts all other clients' updates. With local noise this adversary is the
server, which needs no knowledge of other clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from accounting.errors import AccountingError
from privfed.auditing.prior_runs import priors
from privfed.config.config import Config
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.vector import Indices
from privfed.data.federation import Federation
from privfed.plan.plan import Plan
from privfed.privacy.clipping import clip_rows
from privfed.run.prepare import prepare
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory

MANY, FEW = 10, 2
"""Numbers of clients in the attacked secure sums, in addition to the sum of a complete cohort."""
_READER = "a server that reads updates"
_LOOSE = (1e6, 1e5, 1e3)
"""Privacy budgets (epsilons) that are far too large to protect any client."""


@dataclass(frozen=True)
class View:
    """The observation of an adversary `who`: a mean of updates, possibly clipped or noised.

    Attributes:
      name: the name in reports.
      who: the adversary, in words.
      clients: number of updates in the mean.
      clip: clipping norm; infinite if updates are not clipped.
      std: standard deviation of the noise on the mean.
      epsilon: privacy budget of the noise, if any.
    """

    name: str
    who: str
    clients: int = 1
    clip: float = math.inf
    std: float = 0.0
    epsilon: float | None = None

    def observed(self, updates: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the mean `[d]` of the first `clients` of `updates` `[n, d]`, as in this view.

        Each update is clipped to `clip`, and noise of standard deviation `std` is added to the
        mean.
        """
        rows = updates[: self.clients]
        if self.clip < math.inf:
            rows = clip_rows(rows, self.clip).rows
        noise = torch.randn(rows.shape[1], generator=generator, dtype=rows.dtype)
        return rows.mean(0) + self.std * noise

    def keeps_length(self, update: Tensor) -> bool:
        """Whether the L2 norm of an update `[d]` is at most the view's clipping norm."""
        return float(torch.linalg.vector_norm(update)) <= self.clip


def views(plan: Plan, epsilons: Sequence[float], clients: int) -> list[View]:
    """Returns the adversary's views: of one update as sent, clipped and noised, and of sums.

    Sums are of 2, of 10 and of a cohort's clients, if these are at most the cohort and `clients`,
    and without noise. Without a private mechanism nothing is clipped or noised.

    Args:
      plan: the plan of the run.
      epsilons: budgets for all of the run's rounds at its delta; each gives a noised update.
      clients: number of clients that can be in a sum.

    Raises:
      Refused: if budgets are given for a run without noise, or cannot be met.
    """
    clip = plan.config.mechanism.clip if plan.mechanism.private else math.inf
    levels = [View("as sent", _READER)]
    if plan.mechanism.private:
        levels.append(View(f"clipped to {clip:g}", _READER, clip=clip))
        levels += [_noised(plan, epsilon, clip) for epsilon in sorted(set(epsilons), reverse=True)]
    elif epsilons:
        raise Refused(
            "--epsilon is given, but privacy.mechanism is 'none', so that there is no noise to "
            "calibrate; leave --epsilon out, or set privacy.mechanism = 'gaussian'"
        )
    cohort = plan.config.sampler.size
    for count in sorted({FEW, MANY, cohort}):
        if 1 < count <= min(cohort, clients):
            who = "a server that sees only sums"
            levels.append(View(f"sum of {count} clients", who, count, clip))
    return levels


def _noised(plan: Plan, epsilon: float, clip: float) -> View:
    """Returns the view of one clipped update with the noise of budget `epsilon`."""
    local = plan.mechanism.trust == "client"
    who = _READER if local else "a reader who knows all other updates"
    return View(f"ε = {epsilon:,.10g}", who, 1, clip, noise_for(plan, epsilon) * clip, epsilon)


def noise_for(plan: Plan, epsilon: float) -> float:
    """Returns the noise of each round with which all rounds together spend `epsilon`.

    Args:
      plan: the plan of the run.
      epsilon: privacy budget of all rounds at the run's delta.

    Returns:
      The noise standard deviation on a round's sum, in clipping norms. Under local noise, it is
      that on one client's message, or on one site's sum if sites add the noise.

    Raises:
      Refused: if no noise meets the budget.
    """
    config, sampler = plan.config, plan.config.sampler
    privacy = config.privacy
    try:
        multiplier = plan.cost.solve(
            plan.training_rounds,
            epsilon,
            privacy.delta,
            privacy.accountant,
            plan.before.spending,
            plan.evaluation_cost.spending if plan.evaluation_cost else None,
        )
    except AccountingError as error:
        raise Refused(f"--epsilon {epsilon:g}: {error}") from error
    local = plan.mechanism.trust == "client"
    if (local and config.by_sites) or plan.mechanism.joint:  # on a site's sum; on a row of all
        return multiplier
    return plan.mechanism.at(multiplier).noise_on_update(1 if local else sampler.size)


def default_epsilons(plan: Plan) -> tuple[float, ...]:
    """Returns three ε too large to protect any client, and the run's own if it is below these.

    The run's own, if positive, is its budget or, without a budget, the ε of its guarantee. The
    result is empty for a run without noise.
    """
    if not plan.mechanism.private:
        return ()
    budget = plan.budget or plan.guarantee.epsilon
    return (*_LOOSE, *((budget,) if 0 < budget < min(_LOOSE) else ()))


SIMULATION = "a simulation: it reads clients' own examples, and no ε covers its results"


@dataclass(frozen=True)
class Subject:
    """The run or run file at `path`, with its model `params` `[d]` after `round` rounds."""

    path: Path
    setup: Setup
    params: Tensor
    round: int

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.setup.plan.config

    @property
    def population(self) -> Federation:
        """The clients and examples of the next round, `round` + 1."""
        return self.setup.federation.at(self.round + 1)

    @property
    def lr(self) -> float:
        """The clients' learning rate in the next round."""
        executor = self.setup.executor
        return executor.trainer.lr * executor.schedule.factor(self.round + 1)

    def clients_holding(self, least: int) -> Indices:
        """Returns the clients with at least `least` examples, as ascending indices.

        Raises `Refused` if there are none.
        """
        ids = np.arange(self.population.clients)
        holders = ids[self.population.sizes(ids) >= least]
        if not len(holders):
            if least > 1:
                raise Refused(f"no client holds {least} or more examples; lower --examples")
            raise Refused("no client holds an example; attack a run whose clients hold data")
        return holders


def subject(path: Path, overrides: Sequence[str]) -> Subject:
    """Returns the subject: a run directory with its model, or a run file with its initial model.

    Args:
      path: a run directory or a run file.
      overrides: "key=value" settings, for a run file only.

    Raises:
      Refused: if the attacks on updates do not support the configuration, or a run directory has no
        checkpoint or comes with `overrides`.
    """
    if not path.is_dir():
        config = load(path, overrides)
        before = priors(config)
        setup = prepare(_one_at_a_time(config), before)
        _refuse_unknown(setup)
        return Subject(path, setup, setup.network.initial_params, 0)
    if overrides:
        raise Refused(
            f"--set changes a run file, but {path} is a run directory, whose model is already "
            "trained; leave --set out, or name a run file"
        )
    directory = RunDirectory.open(path)
    config = directory.config.read()
    if not directory.checkpoint.exists():
        raise Refused(
            f"{path} has no checkpoint, because its run has not begun; train the run first"
        )
    setup = prepare(_one_at_a_time(config), constants=directory.constants.read())
    _refuse_unknown(setup)
    checkpoint = Checkpoint.load(directory, setup.network)
    return Subject(path, setup, checkpoint.state.params, checkpoint.round)


def _one_at_a_time(config: Config) -> Config:
    """Returns `config` for training one client at a time on the CPU, without measuring timings."""
    return config.with_run(trainer="loop", chunk=1, device="cpu")


def _refuse_unknown(setup: Setup) -> None:
    """Raises `Refused`, with every reason, if the run's updates are not those simulated here."""
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
            f"compression.name is {config.names['compression']!r}, but attacks are on whole "
            "updates; set compression.name = 'none'"
        )
    if config.keeping:
        reasons.append(
            f"{config.keeping} makes clients keep state between rounds, which is not simulated; "
            "leave it out"
        )
    if config.client_mechanism.private:
        reasons.append(
            "clients train with DP-SGD ([client.privacy]), which is not simulated: leave it out"
        )
    if setup.network.random:
        reasons.append(
            "the model draws random numbers while it trains (dropout), which cannot be repeated"
        )
    if setup.network.averaged.names:
        reasons.append(
            "the model averages running statistics (batch normalisation), which is not simulated"
        )
    if reasons:
        raise Refused("\n".join(reasons))


def examples_of(
    population: Federation, client: int, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the first `count` examples of `client`, or all: x `[n, *features]` and y `[n]`."""
    start, end = (int(place) for place in population.offsets[client : client + 2])
    last = end if count is None else min(start + count, end)
    return population.gather(torch.arange(start, last))
