"""One round: charge, draw, ask the cohort, bound, sum, release, store; then the server's step.

The order is the proof's order: the charge is durable before the cohort is drawn, a release is
durable before anything that follows from it is sent or shown, and nothing but releases reaches the
server optimizer or the next broadcast.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from accounting.ledger import Charge
from defenses.types import SumRule
from privfed.client.exchange import Exchange
from privfed.client.objective import Objective
from privfed.core.answers import refuse_shape
from privfed.core.errors import Refused
from privfed.core.vector import all_finite
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.round.by_rows import ByRows
from privfed.round.by_sums import BySums
from privfed.round.updates import ClientUpdates
from privfed.round.world import Journal, World
from privfed.sampling.cohort import Cohort

Play = Generator[Exchange, Tensor, TrainingState]


def play(algorithm: Algorithm, round: int, state: TrainingState) -> Play:
    """A round by its exchanges: yields each, is sent its release, returns the next state."""
    return (_evaluation if algorithm.evaluates else _training)(algorithm, round, state)


def _evaluation(algorithm: Algorithm, round: int, state: TrainingState) -> Play:
    """A round in which clients measure the model, which stays as it is."""
    layout = algorithm.objective.layout(len(state.params))
    released = yield Exchange("measure", {"params": state.params}, layout)
    before = int(state.evaluation.get("count", 0))
    counts = {"round": torch.tensor(round), "count": torch.tensor(before + 1)}
    return replace(state, evaluation={"released": released, **counts})


def _training(algorithm: Algorithm, round: int, state: TrainingState) -> Play:
    """A round that trains, and moves the model."""
    params, rule, objective = state.params, algorithm.rule, algorithm.objective
    extra = yield from objective.prelude(params, state.objective)
    layout = objective.layout(len(params))
    broadcast = {"params": params, **extra}
    center = state.rule.get("center", params.new_zeros(layout.length))
    for number in range(rule.uploads):
        task = "train" if number == 0 else "terms"
        asked = {**broadcast, "center": center}
        released = yield Exchange(task, asked, layout, bounds=state.mechanism)
        center = rule.center_after(center, released)
    delta, memory = objective.conclude(broadcast, center, state.objective, algorithm.cohorts)
    refuse_shape(delta, params.shape, objective, Objective.conclude)
    remembered = rule.memory_after(state.rule, params, center)
    params, server = algorithm.moved(round, params, delta, state.server)
    return replace(state, params=params, server=server, objective=memory, rule=remembered)


class Conversation:
    """Goes through a play's exchanges: each is answered before the next one comes."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._answer: Tensor
        self.end: TrainingState
        """The state after the round, once the exchanges are through."""

    def __iter__(self) -> Iterator[Exchange]:
        try:
            exchange = next(self._play)
            while True:
                yield exchange
                exchange = self._play.send(self._answer)
        except StopIteration as finished:
            self.end = finished.value

    def answer(self, released: Tensor) -> None:
        """Say what was released for the exchange that came last."""
        self._answer = released


def replay(
    algorithm: Algorithm, round: int, state: TrainingState, releases: Sequence[Tensor]
) -> TrainingState:
    """The state after a round that released `releases`, one for each of its exchanges.

    Raises `ValueError` for one that is not of its exchange's length.
    """
    conversation = Conversation(play(algorithm, round, state))
    for exchange, released in zip(conversation, releases, strict=True):
        if released.shape != (exchange.layout.length,) or released.dtype != torch.float32:
            raise ValueError(f"release of another form than {exchange.layout.length} numbers")
        conversation.answer(released)
    return conversation.end


def run_round(
    round: int, algorithm: Algorithm, state: TrainingState, world: World
) -> TrainingState:
    """Round number `round`, from `state` to the next.

    Raises `BudgetExceeded`, or `Busy` where sites are away, with nothing charged and nobody drawn.
    What else it raises leaves the round charged: `Aborted` consumes it, and `Refused` stands for a
    part that asks for more than was charged, or a release that is not finite.
    """
    charge, drawn = world.ranks.first(lambda: charge_then_draw(round, algorithm, world))
    cohort = world.executor.answering(drawn)
    for memory in world.remembered:
        memory.begin(round)
    updates, rule = ClientUpdates(algorithm, world, state, cohort), algorithm.rule
    aggregation = BySums(rule, updates) if isinstance(rule, SumRule) else ByRows(rule, updates)
    journal, conversation = Journal(charge, world), Conversation(play(algorithm, round, state))
    for number, exchange in enumerate(conversation):
        journal.settle()
        refuse_uncharged(round, number, algorithm)
        released = aggregation.release(exchange, number)
        refuse_not_finite(round, released)
        show(round, exchange, released, algorithm, world)
        journal.keep(released, aggregation.state)
        conversation.answer(released)
    return replace(conversation.end, mechanism=aggregation.state, attack=updates.attack_memory)


def charge_then_draw(round: int, algorithm: Algorithm, world: World) -> tuple[Charge, Cohort]:
    """Pay for the round, and only then draw who takes part in it."""
    world.writing.settle()
    if world.sites:
        world.sites.gather()
    charge, sampler = world.ledger.charge(round, algorithm.event(round)), algorithm.sampler
    if world.sites:  # which draw their own clients, and tell nobody
        nobody = np.empty(0, dtype=np.int64)
        return charge, Cohort(round, nobody, float(sampler.size), algorithm.witness(round))
    people = world.people if sampler.reads_sizes else world.people.with_equal_sizes()
    people = people if algorithm.sites else replace(people, sites=None)
    return charge, algorithm.draw(round, people, world.streams)


def refuse_uncharged(round: int, number: int, algorithm: Algorithm) -> None:
    """Raises `Refused` for exchange `number` where fewer were charged."""
    if number >= algorithm.exchanges:
        raise Refused(
            f"round {round} asks the cohort for exchange {number + 1}, but its parts declared "
            f"{algorithm.exchanges}, which is what was charged; correct `exchanges` of the "
            "objective or `passes` of the rule"
        )


def refuse_not_finite(round: int, released: Tensor) -> None:
    """Raises `Refused` where what would be released `[m]` is not finite."""
    if not all_finite(released):
        raise Refused(
            f"what round {round} would release is not finite: training diverged; start a new run "
            "with a lower client.lr"
        )


def show(
    round: int, exchange: Exchange, released: Tensor, algorithm: Algorithm, world: World
) -> None:
    """Show the aggregate to whoever watches a simulation."""
    if world.watch and exchange.task in ("train", "terms"):
        aggregate = algorithm.rule.center_after(exchange.broadcast["center"], released)
        world.watch.aggregate(round, aggregate)
