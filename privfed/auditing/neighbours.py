"""Rounds as configured, on made-up clients: what two neighbouring populations release.

Sampler, rule, sum, mechanism and divisor are those of the run, and `privfed.round.round` plays them.
Clients are not trained: one of them, the target, sends what betrays it most, the others nothing, or
what it shows up best against. What is then seen may differ as much as was claimed, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.events import ADD_REMOVE, REPLACE_ONE, Event
from accounting.ledger import Charge
from privfed.local.exchange import Chunk, Exchange
from privfed.privacy.mechanism import PublicState
from privfed.round.algorithm import Algorithm
from privfed.round.round import run_round
from privfed.round.world import World
from privfed.sampling.cohort import Cohort, People, Sampler, Witness
from privfed.secure.summation import Aborted
from privfed.streams import Streams
from privfed.vector import Indices

LENGTH, AIMED = 16, 4
"""Numbers of an update, and how many of them, the first, the target moves."""
_REACH, _WEIGHT = 100.0, 1000.0
"""The target's row in clips, and its weight: both far beyond what may matter."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """What clients do for some `rounds`: the target pulls along `direction` `[AIMED]`.

    It does so in every round that it may, the other way round each time, so that what rounds share
    cancels. `against`: all `others` pull against it, so that it matters whose place it takes.
    `weak`: with little noise.
    """

    name: str
    rounds: int
    direction: tuple[float, ...]
    others: int = 0
    against: bool = False
    weak: bool = True

    def along(self) -> Tensor:
        """The direction as a unit vector `[LENGTH]`."""
        found = torch.zeros(LENGTH)
        found[:AIMED] = torch.tensor(self.direction)
        return torch.nn.functional.normalize(found, dim=0)


@dataclass
class Present:
    """Takes everybody: for claims that hold for who is known to take part."""

    sampler: Sampler
    size: int
    remembers: ClassVar[bool] = False
    reads_sizes: ClassVar[bool] = False
    shares_places: ClassVar[bool] = False
    derives_size: ClassVar[bool] = False
    constants: ClassVar[tuple[str, ...]] = ()

    def of(self, clients: int) -> Present:
        return self

    def capacity(self) -> int | None:
        return self.sampler.capacity()

    def witness(self, round: int, clients: int) -> Witness:
        return self.sampler.witness(round, clients)

    def fits(self, population: int, clients: int) -> None: ...

    def sample(self, round: int, clients: int, people: People, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        return Cohort(round, np.arange(len(people)), float(self.size), witness)


@dataclass(frozen=True)
class Actors:
    """Plays the clients. Number 0 is the target, where there is one; it pulls by `pull` clips."""

    scene: Scene
    target: bool
    pull: float
    clip: float
    separation: int

    def answering(self, cohort: Cohort) -> Cohort:
        return cohort

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        if len(cohort.clients):
            rows = self.rows(exchange, cohort)
            weights = torch.where(self._who(cohort.clients), _WEIGHT, 1.0)
            yield Chunk(cohort.clients, rows, weights)

    def rows(self, exchange: Exchange, cohort: Cohort) -> Tensor:
        along = self.scene.along() * self.clip
        rows = torch.zeros(len(cohort.clients), exchange.layout.length)
        if self.scene.against:
            rows[:, :LENGTH] = -along
        turn, waiting = divmod(cohort.round - 1, self.separation)
        pull = 0.0 if waiting else self.pull * (-1.0) ** turn
        rows[self._who(cohort.clients), :LENGTH] = pull * along
        return rows

    def reduce(self, total: Tensor) -> Tensor:
        return total

    def root(self, exchange: Exchange, round: int) -> Tensor:
        raise ValueError("a rule on rows is post-processing of what is tested here")

    def _who(self, clients: Indices) -> Tensor:
        return torch.from_numpy((clients == 0) & self.target)


class Kept:
    """What a round was charged and released, in memory."""

    def __init__(self) -> None:
        self.released: list[Tensor] = []
        self.state: PublicState = {}

    def charge(self, round: int, event: Event) -> Charge:
        return Charge(round, event, "")

    def write(self, charge: Charge, released: list[Tensor], state: PublicState) -> None:
        self.released, self.state = list(released), state


@dataclass(frozen=True)
class Stage:
    """Where `algorithm` is played. `relation` says which populations are neighbours."""

    algorithm: Algorithm
    relation: str

    def play(self, scene: Scene, member: bool, streams: Streams) -> Numbers:
        """All that is seen of `scene`'s rounds `[rounds, k]`, in clips; NaN for an aborted one.

        With the target as a `member`, or as the relation's other neighbour has it.
        """
        algorithm = self.algorithm
        present = member or self.relation != ADD_REMOVE
        absent = -_REACH if self.relation == REPLACE_ONE else 0.0
        separation = algorithm.sampler.witness(0, algorithm.clients).separation
        kept = Kept()
        pull = _REACH if member else absent
        world = World(
            executor=Actors(scene, present, pull, self._clip, separation),
            people=People.of(np.ones(scene.others + present, dtype=np.int64)),
            ledger=kept,
            store=kept,
            streams=streams,
            correlated=algorithm.mechanism.memory(streams, LENGTH),
        )
        state = algorithm.start(torch.zeros(LENGTH))
        seen = np.full((scene.rounds, len(self.aimed(scene))), np.nan)
        for round in range(1, scene.rounds + 1):
            try:
                state = run_round(round, algorithm, state, world)
            except Aborted:
                continue
            seen[round - 1] = self._seen(kept)
        return seen

    def _seen(self, kept: Kept) -> Numbers:
        """The releases of all exchanges `[k]`, then the mechanism's numbers, as logarithms."""
        released = torch.cat(kept.released).double().numpy()
        scaled = released * float(self.algorithm.sampler.size) / self._clip
        public = [np.log(float(kept.state[name])) for name in self._told]
        return np.concatenate([scaled, public])

    @property
    def _told(self) -> list[str]:
        return [name for name in self.algorithm.mechanism.init() if name == "clip"]

    def aimed(self, scene: Scene) -> NDArray[np.bool_]:
        """Which of the numbers that are seen of a round `[k]` the target moves."""
        wire = self.algorithm.wire(self.algorithm.objective.layout(LENGTH))
        moved = np.ones(wire.length, dtype=bool)
        moved[:LENGTH] = scene.along().numpy() != 0
        told = np.ones(len(self._told), dtype=bool)
        return np.concatenate([np.tile(moved, self.algorithm.exchanges), told])

    @property
    def _clip(self) -> float:
        """What a run starts with; whatever claims something has one."""
        return float(self.algorithm.mechanism.clip)
