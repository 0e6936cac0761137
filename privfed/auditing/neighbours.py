"""Rounds as configured, on synthetic clients: the releases on two neighbouring populations.

Sampler, rule, sum, mechanism and divisor are those of the run, and `privfed.round.round` runs them.
Clients follow a script (`privfed.auditing.scenarios`). The releases on the two populations may then
differ by as much as was claimed, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.events import ADD_REMOVE, REPLACE_ONE, Event
from accounting.ledger import Charge
from privfed.auditing.scenarios import LENGTH, Scenario
from privfed.client.exchange import Chunk, Exchange
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.privacy.mechanism import PublicState
from privfed.round.algorithm import Algorithm
from privfed.round.round import run_round
from privfed.round.world import World
from privfed.sampling.cohort import Cohort, Population
from privfed.secure.summation import Aborted

_REACH, _WEIGHT = 100.0, 1000.0
"""The target's row norm in clipping norms, and its weight: far above any effective limit."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class ScriptedClients:
    """An executor whose clients follow `scenario` instead of training.

    The first `target` clients are the target's parts: none, one, or one at each of several sites.
    The target sends rows of norm `pull` * `clip`, of alternating sign in rounds 1, 1 + `separation`
    and so on, and zero rows in others. If the scenario is `steady`, it sends the same row in every
    round.
    """

    scenario: Scenario
    target: int
    pull: float
    clip: float
    separation: int

    def answering(self, cohort: Cohort) -> Cohort:
        return cohort

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        if len(cohort.clients):
            rows = self.rows(exchange, cohort)
            weights = torch.where(self._is_target(cohort.clients), _WEIGHT, 1.0)
            yield Chunk(cohort.clients, rows, weights)

    def rows(self, exchange: Exchange, cohort: Cohort) -> Tensor:
        along = self.scenario.along() * self.clip
        rows = torch.zeros(len(cohort.clients), exchange.layout.length)
        if self.scenario.against:
            rows[:, :LENGTH] = -along
        if self.scenario.aside:
            rows[:, :LENGTH] = self.scenario.across() * self.clip
        turn, waiting = divmod(cohort.round - 1, self.separation)
        pull = 0.0 if waiting else self.pull * (-1.0) ** turn
        if self.scenario.steady:
            pull = self.pull
        rows[self._is_target(cohort.clients), :LENGTH] = pull * along
        return rows

    def root(self, exchange: Exchange, round: int) -> Tensor:
        raise ValueError("a rule on rows is post-processing of the tested release")

    def _is_target(self, clients: Indices) -> Tensor:
        return torch.from_numpy(clients < self.target)


class LastRelease:
    """An in-memory ledger and release store of the last round's releases only."""

    def __init__(self) -> None:
        self.released: list[Tensor] = []
        self.state: PublicState = {}

    def charge(self, round: int, event: Event) -> Charge:
        return Charge(round, event, "")

    def write(self, charge: Charge, released: list[Tensor], state: PublicState) -> None:
        self.released, self.state = list(released), state


@dataclass(frozen=True)
class Neighbours:
    """Runs `algorithm` on two populations, neighbours under the adjacency `relation`."""

    algorithm: Algorithm
    relation: str

    def observe(self, scenario: Scenario, member: bool, streams: Streams) -> Numbers:
        """Runs a scenario and returns everything that is released.

        Args:
          scenario: the clients' script.
          member: whether the target sends its row; otherwise it is absent (add/remove), or sends
            the opposite row (replace-one) or zero.
          streams: the randomness of the rounds.

        Returns:
          Released sums in clipping norms, then logarithms of the mechanism's released state, shape
          `[rounds, k]`; NaN for an aborted round.
        """
        algorithm = self.algorithm
        present = member or self.relation != ADD_REMOVE
        absent = -_REACH if self.relation == REPLACE_ONE else 0.0
        target = algorithm.sites_per_client * present
        separation = algorithm.sampler.witness(0, algorithm.clients).separation
        last = LastRelease()
        pull = _REACH if member else absent
        world = World(
            executor=ScriptedClients(scenario, target, pull, self._clip, separation),
            population=_assigned(scenario.others + target, scenario.sites),
            ledger=last,
            store=last,
            streams=streams,
            layers=(LENGTH,),
            correlated=algorithm.mechanism.memory(streams, LENGTH),
        )
        state = algorithm.initial_state(torch.zeros(LENGTH))
        observed = np.full((scenario.rounds, len(self.moved(scenario))), np.nan)
        for round in range(1, scenario.rounds + 1):
            try:
                state = run_round(round, algorithm, state, world)
            except Aborted:
                continue
            observed[round - 1] = self._numbers(last)
        return observed

    def moved(self, scenario: Scenario) -> NDArray[np.bool_]:
        """Returns a mask `[k]` of the observed numbers that the target affects."""
        wire = self.algorithm.wire(self.algorithm.objective.layout(LENGTH))
        moved = np.ones(wire.length, dtype=bool)
        moved[:LENGTH] = scenario.along().numpy() != 0
        state = np.ones(len(self._released_state), dtype=bool)
        return np.concatenate([np.tile(moved, self.algorithm.exchanges), state])

    def _numbers(self, release: LastRelease) -> Numbers:
        """Returns a round's numbers `[k]`: all exchanges' sums, then logarithms of the state."""
        released = torch.cat(release.released).double().numpy()
        scaled = released * float(self.algorithm.sampler.size) / self._clip
        state = [np.log(float(release.state[name])) for name in self._released_state]
        return np.concatenate([scaled, state])

    @property
    def _released_state(self) -> list[str]:
        """Names of the mechanism's numbers that are released in addition to the sum."""
        return [name for name in self.algorithm.mechanism.init() if name == "clip"]

    @property
    def _clip(self) -> float:
        """The initial clipping norm; every mechanism with a claim has one."""
        return float(self.algorithm.mechanism.clip)


def _assigned(rows: int, sites: int) -> Population:
    """Returns `rows` clients; client k is at site k modulo `sites`, or at no site if that is 0."""
    population = Population.of(np.ones(rows, dtype=np.int64))
    return replace(population, sites=population.identities % sites) if sites else population
