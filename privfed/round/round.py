"""One round: charge, draw, ask the cohort, bound, sum, release, store; then the server's step.

The order is the proof's order: the charge is durable before the cohort is drawn, a release is
durable before it is used, and nothing but releases reaches the server optimizer or the next
broadcast.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.events import Event
from accounting.ledger import Charge
from defenses.types import RowRule, SumRule
from defenses.weighing import Composed
from privfed.config.schedules import CONSTANT, Schedule
from privfed.errors import Refused
from privfed.local.byzantine import Attackers
from privfed.local.objective import ClientState, Cohorts, Exchange, Memory, Objective
from privfed.plan.rule import exchanges
from privfed.privacy.mechanism import BoundedSum, Mechanism
from privfed.privacy.mechanism import State as PublicState
from privfed.privacy.noise.correlated import Correlated
from privfed.ranks import Alone, Ranks
from privfed.round.updates import Asking
from privfed.sampling.cohort import Cohort, People, Sampler
from privfed.secure.aborts import charged
from privfed.secure.dropout import SENDS, leaving
from privfed.secure.summation import Session, Summation
from privfed.server.optimizer import ServerOptimizer
from privfed.server.optimizer import State as ServerState
from privfed.streams import Keys, Streams
from privfed.vector import Layout

Play = Generator[Exchange, Tensor, "TrainingState"]


class Watch(Protocol):
    """Shown what no epsilon covers; simulation-only."""

    def rows(
        self, round: int, ids: NDArray[np.int64], rows: Tensor, hostile: NDArray[np.bool_]
    ) -> None:
        """Clients `[c]`, the raw rows `[c, m]` that they bound next, and which are hostile."""
        ...

    def aggregate(self, round: int, aggregate: Tensor) -> None:
        """What the rule made of the rows, `[m]`; of several passes, of each so far."""
        ...


@dataclass(frozen=True)
class Chunk:
    """Some of the cohort: `ids` `[c]`, their `rows` `[c, m]` and aggregation `weights` `[c]`."""

    ids: NDArray[np.int64]
    rows: Tensor
    weights: Tensor


class Executor(Protocol):
    """Asks the cohort: in this process, or across ranks."""

    def answering(self, cohort: Cohort) -> Cohort:
        """Those of `cohort` who answer at all, by coins that read nobody's data."""
        ...

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        """The cohort's answers, some clients at a time; nothing for an empty cohort."""
        ...

    def reduce(self, total: Tensor) -> Tensor:
        """A sum over all ranks."""
        ...

    def rows(self, exchange: Exchange, cohort: Cohort) -> Tensor:
        """All answers at once, `[n, m]`: for rules that need rows."""
        ...

    def root(self, exchange: Exchange, round: int) -> Tensor:
        """The server's own answer `[m]`, from its root set."""
        ...


class Charges(Protocol):
    """Where rounds are charged: a ledger."""

    def charge(self, round: int, event: Event) -> Charge:
        """Make the round's charge durable. Raises `BudgetExceeded` with nothing charged."""
        ...


class ReleaseStore(Protocol):
    def write(self, charge: Charge, released: list[Tensor], state: PublicState) -> None:
        """Make all exchanges' releases of the charged round so far durable."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """What a run does each round: frozen parts and declared constants."""

    objective: Objective
    server: ServerOptimizer
    rule: SumRule | RowRule
    mechanism: Mechanism
    sampler: Sampler
    summation: Summation
    clients: int
    byzantine: int = 0
    schedule: Schedule = CONSTANT
    dropout: float = 0.0
    aborts: float = 0.0
    """At least the probability that a round aborts for all to see (`privfed.secure.aborts`)."""

    def server_in(self, round: int) -> ServerOptimizer:
        """The server optimizer at its rate in `round`."""
        factor = self.schedule.factor(round)
        return self.server if factor == 1.0 else self.server.at(factor)

    @property
    def cohorts(self) -> Cohorts:
        separation = self.sampler.witness(0, self.clients).separation
        return Cohorts(self.clients, float(self.sampler.size), separation)

    @property
    def fixed_divisor(self) -> bool:
        """Whether rows weigh one and their sum is divided by the configuration's constant."""
        return self.mechanism.private or self.objective.keeps > 0

    def start(self, params: Tensor) -> TrainingState:
        """The state before round 1; a rule that keeps a center starts from no movement."""
        return TrainingState(
            params,
            self.server.init(params),
            self.mechanism.init(),
            self.objective.init(params),
            {"center": torch.zeros_like(params)} if self.remembers else {},
        )

    @property
    def remembers(self) -> bool:
        """Whether the rule starts a round from what the round before released."""
        return isinstance(self.rule, SumRule | Composed) and self.rule.remembers

    @property
    def exchanges(self) -> int:
        return exchanges(self.objective, self.rule)

    def wire(self, layout: Layout) -> Layout:
        """What a client sends: the rule's terms, and its weight where that is not public."""
        if isinstance(self.rule, SumRule) and self.rule.extra:
            layout = layout.plus("terms", self.rule.extra)
        return layout if self.fixed_divisor else layout.plus("weight", 1)

    def encoded(self, parameters: int) -> float:
        """The norm of what is summed, over that of a client's row; 1 without a secure sum.

        Raises `Refused` where the secure sum cannot hold it.
        """
        encoding = self.mechanism.encoding(self.mechanism.init())
        width = self.mechanism.width(self.wire(self.objective.layout(parameters)))
        found = self.summation.encoded(encoding, width)
        return found / encoding.bound if encoding.bound < math.inf else 1.0

    def step(self, parameters: int) -> float | None:
        """Of the whole numbers that are summed; None without a secure sum."""
        width = self.mechanism.width(self.wire(self.objective.layout(parameters)))
        return self.summation.step(self.mechanism.encoding(self.mechanism.init()), width)

    def event(self, round: int) -> Event:
        """What `round` is charged: a pure function of declared constants."""
        witness = self.sampler.witness(round, self.clients)
        return charged(self.mechanism, witness, self.exchanges, self.aborts)


@dataclass(frozen=True)
class TrainingState:
    """All that a round changes, all of it public.

    The model `[d]`, and what server optimizer, mechanism, objective and rule remember. Of simulated
    attackers who read raw updates, what they remember: such a run guarantees nothing.
    """

    params: Tensor
    server: ServerState
    mechanism: PublicState
    objective: Memory = field(default_factory=dict)
    rule: Memory = field(default_factory=dict)
    attack: Memory = field(default_factory=dict)


def play(algorithm: Algorithm, round: int, state: TrainingState) -> Play:
    """A round as its questions: yields exchanges, is sent releases, returns what comes next."""
    params = state.params
    extra = yield from algorithm.objective.prelude(params, state.objective)
    layout = algorithm.objective.layout(len(params))
    broadcast = {"params": params, **extra}
    if isinstance(algorithm.rule, SumRule):
        center = state.rule.get("center", params.new_zeros(layout.length))
        for number in range(algorithm.rule.passes):
            task = "train" if number == 0 else "terms"
            released = yield Exchange(task, {**broadcast, "center": center}, layout)
            center = algorithm.rule.step(center, released)
    else:
        center = yield Exchange("train", broadcast, layout)
    delta, memory = algorithm.objective.conclude(
        broadcast, center, state.objective, algorithm.cohorts
    )
    moved, server = algorithm.server_in(round).step(params, delta, state.server)
    kept = {"center": center} if algorithm.remembers else {}
    return replace(state, params=moved, server=server, objective=memory, rule=kept)


def drive(plan: Play, answer: Callable[[Exchange, int], Tensor]) -> TrainingState:
    """Play a round to its end; `answer` turns exchange number n into what was released for it."""
    exchange, number = next(plan), 0
    while True:
        released = answer(exchange, number)
        try:
            exchange, number = plan.send(released), number + 1
        except StopIteration as finished:
            after: TrainingState = finished.value
            return after


@dataclass(frozen=True)
class World:
    """Where rounds happen: who answers, who counts, who keeps, and where randomness comes from."""

    executor: Executor
    people: People
    ledger: Charges
    store: ReleaseStore
    streams: Streams
    watch: Watch | None = None
    states: ClientState | None = None
    correlated: Correlated | None = None
    attackers: Attackers | None = None
    ranks: Ranks = field(default_factory=Alone)
    """Who plays this run together: the first charges, draws, adds noise and writes."""

    def noise(self, round: int, number: int) -> Keys:
        """The randomness of the release of exchange `number`."""
        if self.correlated:
            return self.correlated.at(round)
        return self.streams.at(f"noise/{number}", round)


def run_round(
    round: int, algorithm: Algorithm, state: TrainingState, world: World
) -> TrainingState:
    """Round number `round`, from `state` to the next.

    Raises `BudgetExceeded` with nothing charged and nobody drawn, and `Aborted` with the round
    charged and consumed.
    """
    mechanism = algorithm.mechanism
    charge, drawn = world.ranks.first(lambda: charge_and_draw(round, algorithm, world))
    cohort = world.executor.answering(drawn)
    if world.states:
        world.states.begin(round)
    releases: list[Tensor] = []
    public = state.mechanism

    asking = Asking(algorithm, world, round, state)

    def answer(exchange: Exchange, number: int) -> Tensor:
        nonlocal public
        if number >= algorithm.exchanges:
            raise Refused(
                f"round {round} asks the cohort for exchange {number + 1}, but its parts declared "
                f"{algorithm.exchanges}, which is what was charged; correct `exchanges` of the "
                "objective or `passes` of the rule"
            )
        if isinstance(algorithm.rule, SumRule):
            total, divisor = collect(
                algorithm, algorithm.rule, exchange, number, cohort, public, asking
            )
            device, before = total.total.device, public

            def noised() -> tuple[Tensor, PublicState]:
                noise = world.noise(round, number)
                found, after = mechanism.release(total, divisor, noise, before)
                return found.cpu(), after

            found, public = world.ranks.first(noised)
            released = aggregate = found.to(device)
            if exchange.task != "gradient":
                aggregate = algorithm.rule.step(exchange.broadcast["center"], released)
        else:
            here, _ = staying(cohort, algorithm.dropout, number, world)
            rows = asking.rows(exchange, here)
            rule, known = algorithm.rule, public

            def ruled() -> Tensor:
                own = world.streams.at(f"noise/client/{number}", round, here.clients)
                bounded = mechanism.bound(rows, exchange.layout, own, known)
                sent = asking.as_sent(here.clients, bounded, rows)
                return asking.by_rule(rule, sent.rows, exchange).cpu()

            released = aggregate = world.ranks.first(ruled).to(rows.device)
        if not bool(released.isfinite().all()):
            raise Refused(
                f"what round {round} would release is not finite: training diverged; start a new "
                "run with a lower client.lr"
            )
        releases.append(released)
        if world.watch and exchange.task != "gradient":
            world.watch.aggregate(round, aggregate)
        if world.states:
            world.states.keep()
        durable = public
        world.ranks.first(lambda: world.store.write(charge, releases, durable))
        return released

    after = drive(play(algorithm, round, state), answer)
    return replace(after, mechanism=public, attack=asking.plotted)


def charge_and_draw(round: int, algorithm: Algorithm, world: World) -> tuple[Charge, Cohort]:
    """In this order: nobody is drawn before it is paid for."""
    charge, sampler = world.ledger.charge(round, algorithm.event(round)), algorithm.sampler
    people = world.people if sampler.reads_sizes else world.people.alike()
    return charge, sampler.sample(round, algorithm.clients, people, world.streams)


def collect(
    algorithm: Algorithm,
    rule: SumRule,
    exchange: Exchange,
    number: int,
    cohort: Cohort,
    public: PublicState,
    asking: Asking,
) -> tuple[BoundedSum, float]:
    """The cohort's bounded sum `[m]` for exchange `number` of its round, and the divisor.

    Under privacy, and where clients keep a state, every row weighs one and the divisor is the
    configuration's constant. Else a row is sent as (weight * row, weight), and the divisor is the
    summed weight.
    """
    mechanism, fixed, world = algorithm.mechanism, algorithm.fixed_divisor, asking.world
    wire = algorithm.wire(exchange.layout)
    model = _hash(exchange.broadcast["params"])
    # Passes ask about the same rows: who sends none in the first of them sends none in any.
    first = min(number, algorithm.objective.exchanges - 1)
    here, leaves = staying(cohort, algorithm.dropout, first, world)
    session = Session(cohort.round, number, model, cohort.clients, leaves, world.streams)
    accumulator = algorithm.summation.open(
        session, mechanism.width(wire), mechanism.encoding(public)
    )
    for chunk in asking.chunks(exchange, here):
        center = exchange.broadcast.get("center", chunk.rows.new_zeros(()))
        rows = rule.terms(chunk.rows, center)
        if asking.unbounded:
            lies = torch.from_numpy(asking.hostile(chunk.ids)).to(rows.device)
            rows = torch.where(lies[:, None], rule.unbounded(chunk.rows, center), rows)
        if not fixed:
            weights = chunk.weights[:, None]
            rows = torch.cat([weights * rows, weights], dim=1)
        keys = world.streams.at(f"noise/client/{number}", cohort.round, chunk.ids)
        bounded = mechanism.bound(rows, wire, keys, public)
        accumulator.add(chunk.ids, asking.as_sent(chunk.ids, bounded, rows))
    closed = accumulator.close()
    summed = world.executor.reduce(closed.total.to(exchange.broadcast["params"].device))
    total = BoundedSum(summed, closed.bound, closed.survivors)
    if fixed:
        return total, cohort.divisor
    weight = float(wire.view(total.total, "weight"))
    if weight <= 0.0:  # nobody's: an average of nothing moves nothing
        return BoundedSum(torch.zeros_like(total.total[:-1]), total.bound, total.survivors), 1.0
    return BoundedSum(total.total[:-1], total.bound, total.survivors), weight


def staying(
    cohort: Cohort, dropout: float, number: int, world: World
) -> tuple[Cohort, NDArray[np.int64]]:
    """Those of `cohort` whose rows of exchange `number` arrive, and when each leaves `[n]`."""
    who = world.people.identities[cohort.clients]
    keys = world.streams.at(f"dropout/{number}", cohort.round, who)
    leaves = leaving(dropout, keys, len(who))
    if not dropout:
        return cohort, leaves
    return replace(cohort, clients=cohort.clients[np.isin(leaves, SENDS)]), leaves


def _hash(params: Tensor) -> bytes:
    return hashlib.sha256(params.cpu().numpy().tobytes()).digest()
