"""The cost of a proven sum of many rows for each party: processor seconds, and bytes."""

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

from experiments.bounded_rows.cohort import Projected, deal, opened_answer
from experiments.bounded_rows.field import Elements, add, centred, elements, uniform
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.parties import Challenges, Client, Server, expanded
from experiments.bounded_rows.proof import Answer, Point, Shares, accepted, answer, prove
from experiments.bounded_rows.signs import signed_sums, signs
from experiments.bounded_rows.statement import bits_of
from privfed.secure.primitives import KEY, Expander

_MASK_BITS = 32
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Cost:
    """The cost of one step for a party: processor seconds, and bytes sent."""

    length: int
    party: str
    step: str
    seconds: float
    sent: int


def costs(parameters: Parameters, clients: int, source: np.random.Generator) -> Iterator[Cost]:
    """Yields costs of a sum of `clients` rows of the largest permitted norm; all must be accepted.

    A client's costs are medians over clients, a server's are sums over clients.
    """
    rows = [row_of(parameters, source) for _ in range(clients)]
    parties = [Client(parameters, row) for row in rows]
    ours = Challenges(parameters, os.urandom(KEY), os.urandom(KEY))

    shares, sharing = _timed(Client.share_row, parties)
    (chosen,), expanding = _timed(lambda each: each.signs, [ours])
    bits, testing = _timed(partial(Client.share_bits, chosen=chosen), parties)
    proofs, proving = _timed(partial(Client.share_proof, weights=ours.weights), parties)
    seconds, seeding = _timed(partial(expanded, parameters), [party.seed for party in parties])
    point = Point.at(parameters, int(uniform(os.urandom(KEY), 1)[0]))

    held = [
        Shares(row, share, proof)
        for row, share, proof in zip(shares, bits, proofs, strict=True)
        if share is not None
    ]
    first, asking = _timed(_answering(Server(ours, point, True), ours), [*enumerate(held)])
    second, asking_too = _timed(_answering(Server(ours, point, False), ours), [*enumerate(seconds)])
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


def cohort_costs(projected: Projected, members: int, source: np.random.Generator) -> Iterator[Cost]:
    """Yields costs of the check under masks, for a client in a cohort of `members`, and for the
    server.

    All clients' proofs have the same cost as this one, which is shared, answered and opened here.
    """
    row, proved = elements(row_of(projected, source)), projected.proved
    (drawn,), drawing = _timed(
        partial(signs, tests=projected.projections, length=projected.length), [os.urandom(KEY)]
    )
    (sums,), summing = _timed(partial(signed_sums, drawn), [row])
    ours = Challenges(proved, os.urandom(KEY), os.urandom(KEY))
    bits = bits_of(proved, ours.signs, sums)
    masks = uniform(os.urandom(KEY), proved.columns)
    (proof,), proving = _timed(partial(prove, proved, ours.weights, sums, bits), [masks])
    dealing = partial(deal, members=members, degree=members // 5, key=os.urandom(KEY))
    (dealt,), sharing = _timed(dealing, [np.concatenate([sums, bits, proof])])
    shares = [Shares(*np.split(line, [len(sums), len(sums) + len(bits)])) for line in dealt]
    question = partial(
        answer, proved, ours.signs, ours.weights, Point.at(proved, 3**30), first=True
    )
    answers, answering = _timed(question, shares)
    places = list(range(1, members + 1))
    (pair,), opening = _timed(partial(opened_answer, places), [answers])
    if not accepted(proved, *pair):
        raise AssertionError("an honest row was refused")

    def cost(party: str, step: str, taken: float, sent: int) -> Cost:
        return Cost(projected.length, party, step, taken, sent)

    sample = answers[0]
    size = sample.columns.nbytes + sample.form.nbytes + sample.value.nbytes
    yield cost("client under masks", "draw signs and sum", drawing[0] + summing[0], 0)
    yield cost("client under masks", "prove and deal", proving[0] + sharing[0], dealt.nbytes)
    yield cost("client under masks", "answer for all", sum(answering), members * size)
    yield cost("server under masks", "open all answers", members * opening[0], 0)


def row_of(parameters: Parameters | Projected, source: np.random.Generator) -> NDArray[np.int64]:
    """Returns a row in a random direction, of the largest permitted norm before rounding toward
    zero.
    """
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


def _answering(server: Server, ours: Challenges) -> Callable[[tuple[int, Shares]], Answer]:
    return lambda held: server.answer(f"client {held[0]}", held[1], ours.name)


def _judged(parameters: Parameters) -> Callable[[tuple[Answer, Answer]], bool]:
    return lambda pair: accepted(parameters, *pair)


def _sum(held: Sequence[Shares]) -> Elements:
    together = np.zeros_like(held[0].row)
    for shares in held:
        together = add(together, shares.row)
    return together


def _masked(length: int, clients: int) -> tuple[float, int]:
    """Returns processor seconds of a masked sum's expansion for a client, and its row's bytes."""
    expander = Expander(length, _MASK_BITS)
    row = expander.zeros()
    start = time.process_time()
    for _ in range(clients):
        expander.apply(row, os.urandom(KEY))
    return time.process_time() - start, expander.size
