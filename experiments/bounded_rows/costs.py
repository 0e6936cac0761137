"""What a proven sum of many rows costs each party: processor seconds, and bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.bounded_rows.field import Elements, add, centred, uniform
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.parties import Client, agreed, expanded
from experiments.bounded_rows.proof import Answer, Point, Shares, accepted, answer
from experiments.bounded_rows.signs import signs
from experiments.bounded_rows.statement import Weights
from privfed.secure.primitives import KEY, Expander

_MASK_BITS = 32
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Cost:
    """What one step takes a party: processor seconds, and bytes that it sends on."""

    length: int
    party: str
    step: str
    seconds: float
    sent: int


def costs(parameters: Parameters, clients: int, source: np.random.Generator) -> Iterator[Cost]:
    """Costs of a sum of `clients` rows as long as is allowed; all have to be accepted.

    Of a client the medians over all, of a server the sum over all clients.
    """
    rows = [row_of(parameters, source) for _ in range(clients)]
    parties = [Client(parameters, row) for row in rows]
    keys = [agreed(os.urandom(KEY), os.urandom(KEY), b"challenge") for _ in range(3)]

    shares, sharing = _timed(Client.share_row, parties)
    (chosen,), expanding = _timed(
        partial(signs, tests=parameters.tests, length=parameters.length), keys[:1]
    )
    bits, testing = _timed(partial(Client.share_bits, chosen=chosen), parties)
    weights = Weights.of(parameters, keys[1])
    proofs, proving = _timed(partial(Client.share_proof, weights=weights), parties)
    seconds, seeding = _timed(partial(expanded, parameters), [party.seed for party in parties])
    point = Point.at(parameters, int(uniform(keys[2], 1)[0]))

    held = [
        Shares(row, share, proof)
        for row, share, proof in zip(shares, bits, proofs, strict=True)
        if share is not None
    ]
    question = partial(answer, parameters, chosen, weights, point)
    first, asking = _timed(partial(question, first=True), held)
    second, asking_too = _timed(partial(question, first=False), seconds)
    verdicts, judging = _timed(_judged(parameters), [*zip(first, second, strict=True)])
    sums, adding = _timed(_sum, [held, seconds])
    if not all(verdicts) or (centred(add(*sums)) != np.sum(rows, axis=0)).any():
        raise AssertionError("an honest row was refused, or the sum is another")

    def cost(party: str, step: str, taken: float, sent: int) -> Cost:
        return Cost(parameters.length, party, step, taken, sent)

    answering = sum(a.columns.nbytes + a.form.nbytes + a.value.nbytes for a in first)
    yield cost("client", "share the row", median(sharing), shares[0].nbytes + KEY)
    yield cost("client", "draw signs", expanding[0], 0)
    yield cost("client", "share the bits", median(testing), held[0].bits.nbytes)
    yield cost("client", "share the proof", median(proving), proofs[0].nbytes)
    yield cost("first server", "answer and judge", sum(asking) + sum(judging), answering)
    yield cost("second server", "expand and answer", sum(seeding) + sum(asking_too), answering)
    yield cost("each server", "add up", max(adding), sums[0].nbytes)
    masking, size = _masked(parameters.length, clients)
    yield cost("client, masks alone", "expand and add", masking, size)


def row_of(parameters: Parameters, source: np.random.Generator) -> NDArray[np.int64]:
    """A row in a random direction, as long as it may be but for rounding towards zero."""
    direction = source.normal(size=parameters.length)
    exact = direction * (parameters.bound / np.linalg.norm(direction))
    return np.trunc(exact).astype(np.int64)


def _timed(
    step: Callable[[_Item], _Result], items: Sequence[_Item]
) -> tuple[list[_Result], list[float]]:
    results, taken = [], []
    for item in items:
        start = time.process_time()
        results.append(step(item))
        taken.append(time.process_time() - start)
    return results, taken


def _judged(parameters: Parameters) -> Callable[[tuple[Answer, Answer]], bool]:
    return lambda pair: accepted(parameters, *pair)


def _sum(held: Sequence[Shares]) -> Elements:
    together = np.zeros_like(held[0].row)
    for shares in held:
        together = add(together, shares.row)
    return together


def _masked(length: int, clients: int) -> tuple[float, int]:
    """Processor seconds of a masked sum's expansion for a client, and its row's bytes."""
    expander = Expander(length, _MASK_BITS)
    row = expander.zeros()
    start = time.process_time()
    for _ in range(clients):
        expander.apply(row, os.urandom(KEY))
    return time.process_time() - start, expander.size
