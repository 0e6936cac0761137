"""One run of Flower's accounted central DP with canaries, and its test against the claim.

Canaries are clients that enter the population with probability 1/2 each, and send their own random
direction. Their membership is guessed from the run's models, and not from the secret bits
(`accounting.empirical.one_run`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from numpy.typing import NDArray

from accounting.empirical.one_run import Guesses, guess
from experiments.audits_elsewhere.flower_central_dp import (
    CLIP,
    DELTA,
    Nodes,
    model_of,
    outside_of_a_run,
    reply,
    strategy,
)

Numbers = NDArray[np.float64]
SHARES = (0.05, 0.1, 0.2, 0.5)
"""Fractions of canaries about which guesses are made: fixed beforehand, with a correction for
each.
"""


@dataclass(frozen=True)
class OneRun:
    """A run of `rounds` with `canaries`, in which `cohort` clients take part in each round.

    There are `clients` other clients, which send almost nothing; models have `length` numbers.
    """

    rounds: int
    cohort: int = 100
    clients: int = 100
    canaries: int = 400
    length: int = 2000


@dataclass(frozen=True)
class OneRunVerdict:
    """The evidence of guesses about a run that claims `epsilon`: the best bound, and the largest
    possible.

    `p_value` is corrected over all tried numbers of guesses.
    """

    epsilon: float
    guesses: Guesses
    epsilon_lower: float
    epsilon_most: float
    p_value: float


def play(run: OneRun, generator: np.random.Generator) -> OneRunVerdict:
    """Runs `run` with Flower's code, and tests it at a confidence of 95 %."""
    outside_of_a_run()
    inclusion = generator.integers(0, 2, run.canaries).astype(bool)
    directions = generator.normal(size=(run.canaries, run.length))
    directions *= CLIP / np.linalg.norm(directions, axis=1, keepdims=True)
    inside = np.flatnonzero(inclusion)
    population = len(inside) + run.clients
    server = strategy(population, run.cohort)
    model, scores = np.zeros(run.length), np.zeros(run.canaries)
    for round in range(1, run.rounds + 1):
        rows = {number: directions[canary] for number, canary in enumerate(inside, 1)}
        before, model = model, _after(server, round, model, rows, population)
        scores += directions @ (model - before)
    return judged(scores, inclusion, float(server.privacy_spent().epsilon))


def judged(scores: Numbers, inclusion: NDArray[np.bool_], epsilon: float) -> OneRunVerdict:
    """Tests `epsilon` with canaries' `scores` `[m]` and their secret `inclusion` `[m]`."""
    tried = [guess(scores, inclusion, int(share * len(inclusion))) for share in SHARES]
    confidence = 1 - 0.05 / len(tried)
    bounds = [guesses.epsilon_lower(DELTA, confidence) for guesses in tried]
    p_value = min(1.0, len(tried) * min(each.p_value(epsilon, DELTA) for each in tried))
    best = int(np.argmax(bounds))
    most = [Guesses(len(inclusion), g.made, g.made).epsilon_lower(DELTA, confidence) for g in tried]
    return OneRunVerdict(epsilon, tried[best], bounds[best], max(most), p_value)


def _after(
    server: Any, round: int, model: Numbers, rows: dict[int, Numbers], population: int
) -> Numbers:
    """Returns the model `[k]` after a round with `rows` `[k]` by node number; other nodes send
    nothing.

    Flower's clipping divides by a row's norm, so "nothing" is a very small row.
    """
    nodes = Nodes((*range(1, population + 1),))
    nothing = np.full(len(model), 1e-9)
    instructions = server.configure_train(round, ArrayRecord([model]), ConfigRecord({}), nodes)
    replies = [
        reply(message, model + rows.get(message.metadata.dst_node_id, nothing))
        for message in instructions
    ]
    return model_of(server.aggregate_train(round, replies)[0])
