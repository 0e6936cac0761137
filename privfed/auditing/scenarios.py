"""Scenarios that test a mechanism: the clients' messages, the population, and the noise.

Clients do not train. One client, the target, sends the message that reveals its participation most.
The others send zeros, or a message against which the target is most visible.

For sums over sites, the scenario shows the joint view of the server and colluding sites in the
worst tolerated case: the fewest sites survive, and the most of these collude. The colluders'
messages are known and subtracted. The rest is the sum over the honest survivors with the noise that
they really added (docs/explanation/distributed_noise.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self, cast

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
from privfed.privacy.mechanism import Encoding, Mechanism
from privfed.privacy.noise.pairwise import PairwiseNoise
from privfed.privacy.noise.shares import Layers
from privfed.privacy.shared_noise import JointNoise, noised_jointly
from privfed.round.algorithm import Algorithm
from privfed.sampling.cohort import Cohort, Population, Sampler, Witness
from privfed.secure.channel import Channel
from privfed.secure.encoded_accumulator import Arithmetic, EncodedAccumulator
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.limits import Leaves, Limits
from privfed.secure.summation import Session
from privfed.server.optimizer import NoStep


class WithoutColluders(Arithmetic):
    """The arithmetic of a sum over sites that includes only the rows of sites 0 to `honest` - 1.

    The other sites count as survivors.
    """

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
    """Sums over sites, as a server that colludes with sites sees them.

    Sites 0 to `honest` - 1 neither drop out nor collude. The next ones up to `limits.minimum` - 1
    collude, or are in regions whose coordinators do. The others drop out before they send a row.
    """

    @property
    def honest(self) -> int:
        """The smallest number |H| of surviving sites that do not collude, as the proof assumes."""
        return self.protocol.site_noise(self.limits).counted

    def open(self, session: Session, length: int, encoding: Encoding) -> EncodedAccumulator:
        leaves = session.leaves if len(session.leaves) else np.zeros_like(session.clients)
        gone = session.clients >= self.limits.minimum
        leaves = np.where(gone, Leaves.BEFORE_MASKING, leaves)
        return super().open(replace(session, leaves=leaves), length, encoding)

    def channel(self, session: Session, codec: Codec, layers: Layers | None) -> Channel:
        lost = partial(self.protocol.abort_where_lost, session, self.limits)
        return WithoutColluders(self.honest, session, codec, self.limits, layers, lost)


class SeenWithOthers(RowRule):
    """A rule that sums rows with those `weights` that reveal most of the first row."""

    weights: tuple[float, ...]

    @classmethod
    def of(cls, noise: PairwiseNoise, divisor: int) -> Self:
        """Returns the rule for rows with `noise`, whose weight of the first row is 1 / `divisor`.

        The weights are proportional to the first row of S^-1, where S is the rows' covariance. Of
        all linear functions with this weight of the first row, this has the least variance.
        """
        n, ratio = noise.clients, noise.shared / noise.alone if noise.alone else 0.0
        covariance = np.eye(n) + ratio**2 * (n * np.eye(n) - np.ones((n, n)))
        line = np.linalg.inv(covariance)[0]
        return cls(weights=tuple((line / line[0] / divisor).tolist()))

    def __call__(self, rows: Tensor, byzantine: int) -> Tensor:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return (weights @ rows.double()).to(rows.dtype)


LENGTH, AIMED = 16, 4
"""Length of an update, and the number of its first entries that the target changes."""
_ONE, _SPREAD = (1.0, 0.0, 0.0, 0.0), (1.0, -1.0, 1.0, -1.0)
_WEAK = 0.5
"""The noise multiplier at which permitted and forbidden behaviour are most distinguishable."""


@dataclass(frozen=True)
class Scenario:
    """The clients' behaviour over some `rounds`: the target sends rows along `direction` `[AIMED]`.

    Unless `steady`, the target alternates the sign of its row in each round in which it may take
    part, so that effects common to all rounds cancel. The target is the first client at the first
    site.

    Attributes:
      others: number of other clients.
      against: all others send rows opposite to the target's, so that replacing any of them is
        visible.
      steady: the target sends the same row each time.
      aside: all others send a row orthogonal to the target's, so that their number is visible.
      weak: whether noise above a multiplier of 0.5 is reduced to it; faults are then most visible.
      configured: the configured noise multiplier.
      sites: number of sites to which clients are assigned; 0 for none.
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
        """Returns the direction as a unit vector `[LENGTH]`."""
        padded = torch.nn.functional.pad(torch.tensor(self.direction), (0, LENGTH - AIMED))
        return torch.nn.functional.normalize(padded, dim=0)

    def across(self) -> Tensor:
        """Returns a unit vector `[LENGTH]` orthogonal to every direction of the target."""
        return torch.eye(LENGTH)[AIMED]


@dataclass
class TakesAll:
    """A sampler that samples all clients, for claims that hold if participation is known.

    It states the participation rule of `sampler` (`witness`). Sums are divided by `size` clients.
    """

    sampler: Sampler
    size: int
    remembers: ClassVar[bool] = False
    reads_sizes: ClassVar[bool] = False
    shares_places: ClassVar[bool] = False
    derives_size: ClassVar[bool] = False
    constants: ClassVar[tuple[str, ...]] = ()

    def of(self, clients: int) -> TakesAll:
        return self

    def capacity(self) -> int | None:
        return self.sampler.capacity()

    def largest_staleness(self) -> int:
        return 0

    def witness(self, round: int, clients: int) -> Witness:
        return self.sampler.witness(round, clients)

    def fits(self, population: int, clients: int) -> None: ...

    def sample(self, round: int, clients: int, population: Population, streams: Streams) -> Cohort:
        witness = self.witness(round, clients)
        return Cohort(round, np.arange(len(population)), float(self.size), witness)


_MOST_ROUNDS = 120
"""Largest number of rounds, in whole epochs, that are simulated."""
_SECRET = PoissonSampled | SeveralSites | TruncatedPoisson | WithoutReplacement | Repeated
"""Releases whose privacy relies on secret subsampling."""


def plan_of_mechanism(config: Config) -> Plan:
    """Returns the plan of `config` for updates of `LENGTH` numbers, with simulated sums.

    Messages are not compressed, because any message is bounded and noised alike. A compression with
    several exchanges per round is kept, since all exchanges are charged and tested. The plan has no
    canaries, because canaries test runs, not mechanisms. The server takes no steps, because these
    follow what is released, which is observed.
    """
    config = overridden(config, ["audit.canaries=0"])
    if config.secured:
        config = overridden(config, ["secure.simulate=arithmetic"])
    if config.compression.exchanges == 1:
        config = replace(config, compression=NoCompression())
    config = replace(config, optimizer=NoStep())
    return plan(config, length=message_length(config, LENGTH), measures=LENGTH)


def scenarios_of(planned: Plan) -> tuple[Algorithm, list[Scenario]]:
    """Returns the algorithm to test, and the scenarios in which its claims are tested.

    If the claims rely on secret subsampling, the sampler is tested too. Otherwise the target takes
    part alone or, in secure sums over clients, with all clients; if clients share the noise, with
    the smallest cohort for which the noise is guaranteed.
    """
    if noised_jointly(planned.mechanism):
        return _seen_jointly(planned, planned.mechanism)
    config, event = planned.config, planned.event
    algorithm = _of_messages(planned)
    separation = algorithm.sampler.witness(0, config.data.clients).separation
    all_clients = config.data.clients - 1
    scenario = partial(Scenario, configured=planned.noise_multiplier or 0.0)
    if config.by_sites:
        algorithm, seen = _seen_of_sites(algorithm, planned)
        scenario = partial(scenario, sites=seen)
    if isinstance(event.release, _SECRET):
        needed = config.secured and not config.by_sites
        others = 0 if event.relation == ADD_REMOVE and not needed else all_clients
        return algorithm, [
            scenario("as configured", 1, _ONE, others, weak=False),
            scenario("one round, one number", 1, _ONE, others),
            scenario("two rounds, several numbers", 2, _SPREAD, others),
            scenario("one round, against all others", 1, _ONE, all_clients, against=True),
        ]
    if isinstance(event.release, RandomAllocation):
        return algorithm, _of_slots(event.release, all_clients, scenario)
    algorithm = replace(
        algorithm, sampler=TakesAll(algorithm.sampler, algorithm.sampler.size), dropout=0.0
    )
    others = all_clients if config.secured and not config.by_sites else 0
    if config.shared_noise and config.row_hiding and others and planned.cost.limits.minimum:
        # These clients generate the noise together with the target.
        others = config.row_hiding.least_cohort(planned.cost.limits) - 1
    several = f"{separation + 1} rounds, several numbers"
    return algorithm, [
        scenario("as configured", 1, _ONE, others, weak=False),
        scenario(several, separation + 1, _SPREAD, others),
    ]


def _of_messages(planned: Plan) -> Algorithm:
    """Returns the algorithm; if messages are visible, its rule is the mean, which reveals most."""
    algorithm = planned.algorithm()
    if planned.mechanism.trust == "client":
        return replace(algorithm, rule=Mean(), byzantine=0)
    return algorithm


def _seen_jointly(planned: Plan, mechanism: JointNoise) -> tuple[Algorithm, list[Scenario]]:
    """Returns the algorithm as the server and colluders see it, and the scenarios to run.

    Only honest clients remain, and the noise that they add together. The observed average of rows
    is the one that reveals most of the target's row.
    """
    algorithm, honest = planned.algorithm(), mechanism.among_honest()
    sampler = algorithm.sampler
    algorithm = replace(
        algorithm,
        mechanism=cast("Mechanism", honest),
        rule=SeenWithOthers.of(honest.noise(), sampler.size),
        sampler=TakesAll(sampler, sampler.size),
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
    drawn: RandomAllocation, all_clients: int, scenario: Callable[..., Scenario]
) -> list[Scenario]:
    """Returns scenarios of one round, one epoch and (two) several epochs; the target acts in slots.

    The `all_clients` other clients are absent, except in the last scenario: there each sends a row
    orthogonal to the target's, which reveals how many of them take part in a round.
    """
    epoch = min(drawn.slots, _MOST_ROUNDS)
    epochs = min(4, max(1, _MOST_ROUNDS // drawn.slots))
    several = partial(scenario, rounds=epochs * epoch, direction=_ONE, steady=True)
    return [
        scenario("as configured", 1, _ONE, weak=False),
        scenario("one epoch", epoch, _ONE, steady=True),
        several(f"{epochs} epochs"),
        several("the others' slots are known", others=all_clients, aside=True),
    ]


def _seen_of_sites(algorithm: Algorithm, planned: Plan) -> tuple[Algorithm, int]:
    """Returns the algorithm as its adversary sees it, and the number of observed sites.

    With noise that sites add together, the server and colluding sites see the messages of the
    smallest number of honest sites. With noise that each site adds alone, the sums of the target's
    sites are visible, here as their sum; with central noise, the sum over all sites. Dropouts only
    hide information, so none are simulated.
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


def with_scenario_noise(scenario: Scenario, algorithm: Algorithm) -> Algorithm:
    """Returns `algorithm`, with a noise multiplier of at most 0.5 if the `scenario` is `weak`."""
    noise = algorithm.event(1).noise
    if not scenario.weak or noise is None or noise.noise_multiplier <= _WEAK:
        return algorithm
    factor = _WEAK / noise.noise_multiplier
    return replace(algorithm, mechanism=algorithm.mechanism.at(scenario.configured * factor))
