"""A simulated run, and each client's final model, scored on the client's held-out examples.

Charges, releases and client states are in memory only: not for real clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from experiments.federated_evaluation.scored import Unkept, less_held_back
from experiments.personalisation.cases import Adaptation
from privfed.client.exchange import Broadcast
from privfed.client.objective import Sgd
from privfed.config.config import Config
from privfed.core.ranks import ALONE
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Federation
from privfed.data.holdout import with_held_back
from privfed.models.network import Network
from privfed.round.algorithm import TrainingState
from privfed.round.round import run_round
from privfed.run.population import load_population
from privfed.run.prepare import prepare
from privfed.run.setup import Setup
from privfed.run.world import shared_world

Scores = np.ndarray


@dataclass
class InMemory:
    """The states of `clients` clients, `[k]` numbers each, for a run that is never interrupted."""

    values: Tensor
    known: Tensor
    scattered: list[tuple[Indices, Tensor]] = field(default_factory=list)

    @classmethod
    def empty(cls, clients: int, width: int) -> InMemory:
        return cls(torch.zeros(clients, width), torch.zeros(clients, dtype=torch.bool))

    def begin(self, round: int) -> None:
        self.scattered = []

    def gather(self, ids: Indices, unseen: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(ids)
        return torch.where(self.known[rows, None], self.values[rows], unseen), self.known[rows]

    def scatter(self, ids: Indices, values: Tensor) -> None:
        self.scattered.append((ids, values.detach().clone()))

    def keep(self) -> None:
        for ids, values in self.scattered:
            self.values[torch.from_numpy(ids)] = values
            self.known[torch.from_numpy(ids)] = True
        self.scattered = []

    def discard(self) -> None:
        self.scattered = []

    def replay(self, round: int, released: bool) -> None: ...

    def settle(self, round: int) -> None: ...


@dataclass(frozen=True)
class Ended:
    """A finished run: its model, and the clients' states."""

    setup: Setup
    state: TrainingState
    states: InMemory | None
    held_back: Federation

    @property
    def everybody(self) -> Indices:
        return np.arange(self.setup.federation.clients)

    def shared(self) -> Scores:
        """Returns each client's accuracy `[n]` with the run's own model."""
        return accuracies(self.setup.network, self.held_back, self.state.params[None])

    def personal(self) -> Scores:
        """Returns each client's accuracy `[n]` with its personal model."""
        trainer, ids = self.setup.executor.trainer, self.everybody
        objective = trainer.objective
        if not objective.personalises:
            raise ValueError("clients of this run have no models of their own")
        broadcast = self._broadcast()
        keys = self.setup.streams.at("measure", 0, ids)
        theirs = self.states.gather(ids, objective.unseen(broadcast))[0] if self.states else None
        measured = trainer.losses(ids, broadcast["params"], keys)
        models = objective.personal(broadcast, theirs, measured)
        return accuracies(trainer.network, self.held_back, models)

    def adapted(self, how: Adaptation) -> Scores:
        """Returns each client's accuracy `[n]` with the run's model after local fine-tuning."""
        return accuracies(
            self.setup.network, self.held_back, trained_on(self.setup, self.state.params, how)
        )

    def _broadcast(self) -> Broadcast:
        """Returns the next round's broadcast."""
        prelude = self.setup.algorithm.objective.prelude(self.state.params, self.state.objective)
        try:
            next(prelude)
        except StopIteration as finished:
            return {"params": self.state.params, **finished.value}
        raise ValueError("clients would be asked for something before they train")


def ended(config: Config) -> Ended:
    """Runs `config` to its end."""
    setup = prepare(config, load=less_held_back)
    width = setup.state_length
    states = InMemory.empty(setup.federation.clients, width) if width else None
    books, state = Unkept(), setup.initial_state()
    world = shared_world(setup, books, books, ALONE)
    executor = replace(setup.executor, states=states)
    world = replace(world, executor=executor, states=states)
    for round in range(1, config.run.rounds + 1):
        state = run_round(round, setup.algorithm_in(round), state, world)
    return Ended(setup, state, states, what_is_held_back(config))


def what_is_held_back(config: Config) -> Federation:
    """Returns each client's held-out examples."""
    population = load_population(config, Streams(config.run.seed))
    return with_held_back(population, config.evaluation.holdout)[1]


def untrained(config: Config) -> Ended:
    """Returns the run of `config` before its first round, for clients that train alone."""
    setup = prepare(config, load=less_held_back)
    return Ended(setup, setup.initial_state(), None, what_is_held_back(config))


def trained_on(setup: Setup, params: Tensor, how: Adaptation) -> Tensor:
    """Returns each client's model `[n, d]` after local training from `params` `[d]`."""
    trainer = replace(
        setup.executor.trainer,
        objective=Sgd(),
        lr=how.rate,
        epochs=how.epochs,
        network=setup.network,
    )
    ids = np.arange(setup.federation.clients)
    keys = setup.streams.at("personal", 0, setup.federation.identify(ids))
    return params + trainer.train(ids, {"params": params}, None, keys)[0]


def accuracies(network: Network, held_back: Federation, models: Tensor) -> Scores:
    """Returns each client's accuracy `[n]` with its row of `models` `[n or 1, d]`."""
    sizes = np.diff(held_back.offsets)
    place = np.minimum(np.arange(sizes.max()), sizes[:, None] - 1) + held_back.offsets[:-1, None]
    x, y = held_back.gather(torch.from_numpy(place))
    with torch.no_grad():
        outputs = network.stacked_outputs(models.expand(len(sizes), -1), x)
    right = (outputs.argmax(-1) == y).numpy()
    real = np.arange(sizes.max()) < sizes[:, None]
    shares: Scores = (right & real).sum(1) / sizes
    return shares
