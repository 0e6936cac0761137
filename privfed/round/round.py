"""One round: charge, sample, broadcast, bound, sum, release, store; then the server's step.

The rules of proof require this order. The charge is durable before the cohort is sampled. A release
is durable before any value computed from it is sent or shown. Only releases reach the server
optimizer and the next broadcast.
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
    """Runs a round as a generator: yields exchanges, receives releases, returns the next state.

    Args:
      algorithm: frozen parts and declared constants of the run.
      round: number of the round.
      state: the state before the round.

    Yields:
      The exchanges of the round; the caller passes the release of each, shape [m], by `send`.
    """
    return (_evaluation if algorithm.evaluates else _training)(algorithm, round, state)


def _evaluation(algorithm: Algorithm, round: int, state: TrainingState) -> Play:
    """Runs, as `play`, a round in which clients evaluate the model, which does not change."""
    layout = algorithm.objective.layout(len(state.params))
    released = yield Exchange("measure", {"params": state.params}, layout)
    before = int(state.evaluation.get("count", 0))
    counts = {"round": torch.tensor(round), "count": torch.tensor(before + 1)}
    return replace(state, evaluation={"released": released, **counts})


def _training(algorithm: Algorithm, round: int, state: TrainingState) -> Play:
    """Runs, as `play`, a round that trains the model."""
    params, rule, objective = state.params, algorithm.rule, algorithm.objective
    extra = yield from objective.prelude(params, state.objective)
    layout = objective.layout(len(params))
    broadcast = {"params": params, **extra}
    center = state.rule.get("center", params.new_zeros(layout.length))
    for number in range(rule.uploads):
        task = "train" if number == 0 else "terms"
        requested = {**broadcast, "center": center}
        released = yield Exchange(task, requested, layout, bounds=state.mechanism)
        center = rule.center_after(center, released)
    delta, memory = objective.conclude(broadcast, center, state.objective, algorithm.cohorts)
    refuse_shape(delta, params.shape, objective, Objective.conclude)
    remembered = rule.memory_after(state.rule, params, center)
    params, server = algorithm.moved(round, params, delta, state.server)
    return state.after(params, server=server, objective=memory, rule=remembered)


class Conversation:
    """Iterates over the exchanges of a `play`; `answer` must be called before the next one."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._answer: Tensor
        self.end: TrainingState
        """The state after the round; set after the last exchange was answered."""

    def __iter__(self) -> Iterator[Exchange]:
        try:
            exchange = next(self._play)
            while True:
                yield exchange
                exchange = self._play.send(self._answer)
        except StopIteration as finished:
            self.end = finished.value

    def answer(self, released: Tensor) -> None:
        """Passes the release of the last exchange to the play."""
        self._answer = released


def replay(
    algorithm: Algorithm, round: int, state: TrainingState, releases: Sequence[Tensor]
) -> TrainingState:
    """Returns the state after a round whose `releases` are known; no client takes part.

    Args:
      algorithm: frozen parts and declared constants of the run.
      round: number of the round.
      state: the state before the round.
      releases: the release of each exchange, float32: a row, and the rule's `extra` terms.

    Raises:
      ValueError: if a release has another length or type, or the number of releases differs.
    """
    conversation = Conversation(play(algorithm, round, state))
    for exchange, released in zip(conversation, releases, strict=True):
        length = exchange.layout.length + algorithm.rule.extra
        if released.shape != (length,) or released.dtype != torch.float32:
            raise ValueError(
                f"a release is {tuple(released.shape)} {released.dtype}, but the exchange has "
                f"{length} float32 numbers"
            )
        conversation.answer(released)
    return conversation.end


def run_round(
    round: int, algorithm: Algorithm, state: TrainingState, world: World
) -> TrainingState:
    """Runs one round, which is charged before its cohort is sampled.

    An error after the charge leaves the round charged.

    Args:
      round: number of the round.
      algorithm: frozen parts and declared constants of the run.
      state: the state before the round.
      world: clients, ledger, random streams and storage of the run.

    Returns:
      The state after the round.

    Raises:
      BudgetExceeded: if the budget does not suffice; nothing is charged or sampled.
      Busy: if too few sites are available; nothing is charged or sampled.
      Aborted: if a sum cannot be completed; the round is charged and not repeated.
      Refused: if there are more exchanges than were charged, or a release is not finite.
    """
    charge, drawn = world.ranks.first(lambda: charge_then_draw(round, algorithm, world))
    cohort = world.executor.answering(drawn)
    for memory in world.remembered:
        memory.begin(round)
    updates, rule = ClientUpdates(algorithm, world, state, cohort), algorithm.rule
    aggregation = BySums(rule, updates) if isinstance(rule, SumRule) else ByRows(rule, updates)
    journal, conversation = Journal(charge, world), Conversation(play(algorithm, round, state))
    for number, exchange in enumerate(conversation):
        journal.flush()
        refuse_uncharged(round, number, algorithm)
        released = aggregation.release(exchange, number)
        refuse_not_finite(round, released)
        show(round, exchange, released, algorithm, world)
        journal.keep(released, aggregation.state)
        conversation.answer(released)
    return replace(conversation.end, mechanism=aggregation.state, attack=updates.attack_memory)


def charge_then_draw(round: int, algorithm: Algorithm, world: World) -> tuple[Charge, Cohort]:
    """Charges the round, then samples its cohort; returns the charge and the cohort.

    The cohort is empty if sites are on other machines, since these sample their own clients.
    """
    world.writing.flush()
    if world.sites:
        world.sites.gather()
    charge, sampler = world.ledger.charge(round, algorithm.event(round)), algorithm.sampler
    if world.sites:  # sites sample their own clients, without revealing them
        no_clients = np.empty(0, dtype=np.int64)
        return charge, Cohort(round, no_clients, float(sampler.size), algorithm.witness(round))
    population = world.population if sampler.reads_sizes else world.population.with_equal_sizes()
    population = population if algorithm.sites else replace(population, sites=None)
    return charge, algorithm.draw(round, population, world.streams)


def refuse_uncharged(round: int, number: int, algorithm: Algorithm) -> None:
    """Raises `Refused` if exchange `number` (from 0) was not charged."""
    if number >= algorithm.exchanges:
        raise Refused(
            f"round {round} has an exchange {number + 1}, but only {algorithm.exchanges} were "
            "declared and charged; correct `exchanges` of the objective or `passes` of the rule"
        )


def refuse_not_finite(round: int, released: Tensor) -> None:
    """Raises `Refused` if a value of the release `[m]` is not finite."""
    if not all_finite(released):
        raise Refused(
            f"the release of round {round} is not finite, since training diverged; start a new run "
            "with a lower client.lr"
        )


def show(
    round: int, exchange: Exchange, released: Tensor, algorithm: Algorithm, world: World
) -> None:
    """Passes the rule's aggregate to `world.watch`, if set, after each pass of a training round."""
    if world.watch and exchange.task in ("train", "terms"):
        aggregate = algorithm.rule.center_after(exchange.broadcast["center"], released)
        world.watch.aggregate(round, aggregate)
