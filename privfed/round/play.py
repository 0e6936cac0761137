"""A round as its exchanges: what the cohort is asked, and what the server makes of the releases."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from privfed.client.exchange import Exchange
from privfed.round.algorithm import Algorithm, TrainingState

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
    """The state after a round that released `releases`, one for each of its exchanges."""
    conversation = Conversation(play(algorithm, round, state))
    for number, _ in enumerate(conversation):
        conversation.answer(releases[number])
    return conversation.end
