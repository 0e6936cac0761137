"""One round: charge, draw, ask the cohort, bound, sum, release, store; then the server's step.

The order is the proof's order: the charge is durable before the cohort is drawn, a release is
durable before it is used, and nothing but releases reaches the server optimizer or the next
broadcast.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Charge
from defenses.types import SumRule
from privfed.errors import Refused
from privfed.local.exchange import Exchange
from privfed.privacy.mechanism import BoundedSum, PublicState
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.round.updates import Asking
from privfed.round.world import World
from privfed.sampling.cohort import Cohort
from privfed.secure.dropout import SENDS, leaving
from privfed.secure.summation import Session

Play = Generator[Exchange, Tensor, "TrainingState"]


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
