"""Scenarios in which a mechanism is tested: what clients do, who is there, and at which noise.

Clients are not trained: one of them, the target, sends what betrays it most, the others nothing, or
what it shows up best against.

What the server and colluding sites together see of sums over sites, in the worst case allowed.

As many sites stay as have to, and so many of these work with the server as may: what they sent is
known, and taken off. Left is what honest survivors sent, with the noise that they really added:
what PRIVACY, section 9.1, calls Y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from accounting.events import ADD_REMOVE
from accounting.over_rounds import RandomAllocation
from accounting.releases import (
    PoissonSampled,
    Repeated,
    SeveralSites,
    TruncatedPoisson,
    WithoutReplacement,
)
from defenses.by_sums.mean import Mean
from defenses.types import RowRule
from privfed.client.compression.compression import NoCompression
from privfed.config.config import Config
from privfed.config.reading import overridden
from privfed.core.streams import Streams
from privfed.plan.plan import Plan, plan
from privfed.plan.rule import message_length
from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.pairwise import PairwiseNoise
from privfed.privacy.noise.shares import Layers
from privfed.privacy.shared_noise import JointNoise, noised_jointly
from privfed.round.algorithm import Algorithm
from privfed.sampling.cohort import Cohort, People, Sampler, Witness
from privfed.secure.channel import Channel
from privfed.secure.encoded_accumulator import Arithmetic, EncodedAccumulator
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.limits import Leaves, Limits
from privfed.secure.summation import Session


class WithoutColluders(Arithmetic):
    """The arithmetic of a sum over sites, less all that the sites from number `honest` on sent."""

    def __init__(
        self,
        honest: int,
        session: Session,
        codec: Codec,
        limits: Limits,
        layers: Layers | None,
        abort_where_lost: Callable[[], None],
    ) -> None:
        super().__init__(session, codec, limits, layers, abort_where_lost)
        self._honest = honest

    def send(self, client: int, row: Integers) -> None:
        if client < self._honest:
            super().send(client, row)
        else:
            self._count += 1


@dataclass(frozen=True)
class SeenWithColluders(EncodedSummation):
    """Sums over sites as the server sees them that works with colluding sites.

    The first `honest` sites neither drop out nor collude. The last ones drop out, as many as may,
    beside whoever else does.
    """

    @property
    def honest(self) -> int:
        """How many sites stay and do not collude: |H|, as few as the proof counts on."""
        return self.limits.minimum - self.limits.colluders

    def open(self, session: Session, length: int, encoding: Encoding) -> EncodedAccumulator:
        leaves = session.leaves if len(session.leaves) else np.zeros_like(session.clients)
        gone = session.clients >= self.limits.minimum
        leaves = np.where(gone, Leaves.BEFORE_MASKING, leaves)
        return super().open(replace(session, leaves=leaves), length, encoding)

    def channel(self, session: Session, codec: Codec, layers: Layers | None) -> Channel:
        lost = partial(self.protocol.abort_where_lost, session, self.limits)
        return WithoutColluders(self.honest, session, codec, self.limits, layers, lost)


class SeenBesideOthers(RowRule):
    """The sum of rows by `weights`, that says most of the first one: its noise is the least."""

    weights: tuple[float, ...]

    @classmethod
    def of(cls, noise: PairwiseNoise, divisor: int) -> Self:
        """The weights `[n]` over rows with this noise, the first of them being 1 / `divisor`.

        They are the first line of S^-1, S being the covariance over rows, over its first number: of
        all linear functions that the first row moves as much, this one has the least variance.
        """
        n, ratio = noise.clients, noise.shared / noise.alone if noise.alone else 0.0
        covariance = np.eye(n) + ratio**2 * (n * np.eye(n) - np.ones((n, n)))
        line = np.linalg.inv(covariance)[0]
        return cls(weights=tuple((line / line[0] / divisor).tolist()))

    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return (weights @ rows.double()).to(rows.dtype)


LENGTH, AIMED = 16, 4
"""Numbers of an update, and how many of them, the first, the target moves."""
_ONE, _SPREAD = (1.0, 0.0, 0.0, 0.0), (1.0, -1.0, 1.0, -1.0)
_WEAK = 0.5
"""The noise multiplier at which what a client may do, and may not, are told apart best."""


@dataclass(frozen=True)
class Scenario:
    """What clients do for some `rounds`: the target pulls along `direction` `[AIMED]`.

    It does so in every round that it may, the other way round each time, so that what rounds share
    cancels; `steady`, the same way. `against`: all `others` pull against it, so that it matters
    whose place it takes; `aside`: across it, so that one sees how many of them take part.
    `weak`: with little noise, in place of the noise multiplier that is `configured`. Clients are
    dealt over `sites`, 0 of which are none, and the target is the first client at the first.
    """

    name: str
    rounds: int
    direction: tuple[float, ...]
    others: int = 0
    against: bool = False
    steady: bool = False
    aside: bool = False
    weak: bool = True
    configured: float = 0.0
    sites: int = 0

    def along(self) -> Tensor:
        """The direction as a unit vector `[LENGTH]`."""
        padded = torch.zeros(LENGTH)
        padded[:AIMED] = torch.tensor(self.direction)
        return torch.nn.functional.normalize(padded, dim=0)

    def across(self) -> Tensor:
        """A direction across all that the target may move, as a unit vector `[LENGTH]`."""
        return torch.eye(LENGTH)[AIMED]


@dataclass
class TakesEverybody:
    """A sampler that draws everybody: for claims that hold for who is known to take part.

    It claims what `sampler` claims, and its cohorts count as of `size`.
    """

    sampler: Sampler
    size: int
    remembers: ClassVar[bool] = False
    reads_sizes: ClassVar[bool] = False
    shares_places: ClassVar[bool] = False
    derives_size: ClassVar[bool] = False
    constants: ClassVar[tuple[str, ...]] = ()

    def of(self, clients: int) -> TakesEverybody:
        return self

    def capacity(self) -> int | None:
        return self.sampler.capacity()

    def witness(self, round: int, clients: int) -> Witness:
        return self.sampler.witness(round, clients)

    def fits(self, population: int, clients: int) -> None: ...

    def sample(self, round: int, clients: int, people: People, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        return Cohort(round, np.arange(len(people)), float(self.size), witness)


_MOST_ROUNDS = 120
"""How many rounds of epochs are played at most."""
_SECRET = PoissonSampled | SeveralSites | TruncatedPoisson | WithoutReplacement | Repeated
"""Releases that rest on a secret draw."""


def plan_of_mechanism(config: Config) -> Plan:
    """The plan of `config` for updates of `LENGTH` numbers; of a secure sum, its arithmetic.

    Messages are not compressed, as whatever is sent is bounded and noised alike; but where that
    takes several exchanges, these are what is charged, and what is tested. It has no canaries:
    these test runs, and nobody but those of a scenario is in its populations.
    """
    config = overridden(config, ["audit.canaries=0"])
    if config.secured:
        config = overridden(config, ["secure.simulate=arithmetic"])
    if config.compression.exchanges == 1:
        config = replace(config, compression=NoCompression())
    return plan(config, length=message_length(config, LENGTH), measures=LENGTH)


def scenarios_of(planned: Plan) -> tuple[Algorithm, list[Scenario]]:
    """The algorithm to test, and the scenarios that its claims are tested in.

    Of claims that rest on a secret draw the sampler is tested as well; else everybody takes part
    who is there, as few as noise is guaranteed for.
    """
    if noised_jointly(planned.mechanism):
        return _seen_jointly(planned, planned.mechanism)
    config, event = planned.config, planned.event
    algorithm = _of_messages(planned)
    separation = algorithm.sampler.witness(0, config.data.clients).separation
    everybody = config.data.clients - 1
    scenario = partial(Scenario, configured=planned.noise_multiplier or 0.0)
    if config.by_sites:
        algorithm, seen = _seen_of_sites(algorithm, planned)
        scenario = partial(scenario, sites=seen)
    if isinstance(event.release, _SECRET):
        needed = config.secured and not config.by_sites
        others = 0 if event.relation == ADD_REMOVE and not needed else everybody
        return algorithm, [
            scenario("as configured", 1, _ONE, others, weak=False),
            scenario("one round, one number", 1, _ONE, others),
            scenario("two rounds, several numbers", 2, _SPREAD, others),
            scenario("one round, against all others", 1, _ONE, everybody, against=True),
        ]
    if isinstance(event.release, RandomAllocation):
        return algorithm, _of_slots(event.release, everybody, scenario)
    algorithm = replace(
        algorithm, sampler=TakesEverybody(algorithm.sampler, algorithm.sampler.size), dropout=0.0
    )
    others = everybody if config.secured and not config.by_sites else 0
    if config.shared_noise and config.row_hiding and others and planned.cost.limits.minimum:
        # Who, with the target, make up the noise.
        others = config.row_hiding.begun(planned.cost.limits) - 1
    several = f"{separation + 1} rounds, several numbers"
    return algorithm, [
        scenario("as configured", 1, _ONE, others, weak=False),
        scenario(several, separation + 1, _SPREAD, others),
    ]


def _of_messages(planned: Plan) -> Algorithm:
    """The algorithm, by a plain mean where messages are seen: no rule tells more than these."""
    algorithm = planned.algorithm()
    if planned.mechanism.trust == "client":
        return replace(algorithm, rule=Mean(), byzantine=0)
    return algorithm


def _seen_jointly(planned: Plan, mechanism: JointNoise) -> tuple[Algorithm, list[Scenario]]:
    """The algorithm as the server and colluders see it, who took off what they know, and scenarios.

    Left are the honest clients, among whom there are no colluders, with the noise that they share.
    Of their rows the one average is looked at that says most of the target's.
    """
    algorithm, honest = planned.algorithm(), mechanism.among_honest()
    sampler = algorithm.sampler
    algorithm = replace(
        algorithm,
        mechanism=honest,
        rule=SeenBesideOthers.of(honest.noise(), sampler.size),
        sampler=TakesEverybody(sampler, sampler.size),
        byzantine=0,
        dropout=0.0,
    )
    others = mechanism.honest - 1
    scenario = partial(Scenario, configured=planned.noise_multiplier or 0.0, others=others)
    return algorithm, [
        scenario("as configured", 1, _ONE, weak=False),
        scenario("2 rounds, several numbers", 2, _SPREAD),
        scenario("one round, against all others", 1, _ONE, against=True),
    ]


def _of_slots(
    drawn: RandomAllocation, everybody: int, scenario: Callable[..., Scenario]
) -> list[Scenario]:
    """Scenarios of one epoch, and of several, as many as are played: the target pulls in its slots.

    The others are not there, or in the last one show when they take part.
    """
    epoch = min(drawn.slots, _MOST_ROUNDS)
    epochs = min(4, max(1, _MOST_ROUNDS // drawn.slots))
    several = partial(scenario, rounds=epochs * epoch, direction=_ONE, steady=True)
    return [
        scenario("as configured", 1, _ONE, weak=False),
        scenario("one epoch", epoch, _ONE, steady=True),
        several(f"{epochs} epochs"),
        several("the others' slots are known", others=everybody, aside=True),
    ]


def _seen_of_sites(algorithm: Algorithm, planned: Plan) -> tuple[Algorithm, int]:
    """The algorithm as somebody sees it whom its claim is about, and at how many sites clients are.

    Noise that sites share: the server with colluding sites sees what as few sites sent as is
    counted on. Noise that each site adds by itself: the sums of the target's sites are seen, here
    as their own sum. Central noise: all sites' sum. Who drops out only hides, and nobody does.
    """
    algorithm = replace(algorithm, dropout=0.0)
    if planned.mechanism.trust == "client":
        parts = algorithm.sites_per_client
        return replace(algorithm, sites=parts), parts
    summation = algorithm.summation
    if planned.mechanism.trust == "sum" and isinstance(summation, EncodedSummation):
        seen = SeenWithColluders(summation.protocol, summation.limits)
        return replace(algorithm, summation=seen), seen.honest
    return algorithm, algorithm.sites


def at_noise_of(scenario: Scenario, algorithm: Algorithm) -> Algorithm:
    """`algorithm` with the noise of `scenario`: where that is strong, a test sees little."""
    noise = algorithm.event(1).noise
    if not scenario.weak or noise is None or noise.noise_multiplier <= _WEAK:
        return algorithm
    factor = _WEAK / noise.noise_multiplier
    return replace(algorithm, mechanism=algorithm.mechanism.at(scenario.configured * factor))
