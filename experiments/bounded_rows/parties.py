"""A client that shares a row between two servers and proves its norm, message by message.

1. The client sends a share of its row to the first server. It sends a seed to the second server,
   from which all shares of the second server are expanded.
2. Both servers draw a seed, commit to it, and open it: the signs of all tests (`agreed`).
3. The client sends the share of its bits. The servers draw the weights likewise.
4. The client sends the share of its proof. It sends to both servers, signed, the name of the
   challenges that it answered. The servers draw the point, and exchange their answers.

A client that does not send in time is not part of the sum. Challenges are drawn once for all
clients, after all have sent, so they are independent of the tested values. A server answers only
clients that name its challenges. Under other signs, the equation's value would be a sum of the
row's numbers, and a server that shows a client other signs could read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from experiments.bounded_rows.field import Elements, elements, subtract, uniform
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.proof import Answer, Point, Shares, answer, prove
from experiments.bounded_rows.signs import Signs, signs
from experiments.bounded_rows.statement import Weights, bits_of, fits
from privfed.core.errors import Refused
from privfed.secure.primitives import derive, random_key


def agreed(first: bytes, second: bytes, purpose: bytes) -> bytes:
    """Returns the key of a challenge, from a seed of each server."""
    return derive(first + second, b"bounded rows", purpose)


@dataclass(frozen=True)
class Challenges:
    """The signs and the weights that the keys `drawn` and `weighed` determine."""

    parameters: Parameters
    drawn: bytes
    weighed: bytes

    @property
    def name(self) -> bytes:
        """The value that a client signs: a hash of the keys and of the parameters of the proof."""
        return sha256(repr(self.parameters).encode() + self.drawn + self.weighed).digest()

    @cached_property
    def signs(self) -> Signs:
        """The signs `[tests, length]`."""
        return signs(self.drawn, self.parameters.tests, self.parameters.length)

    @cached_property
    def weights(self) -> Weights:
        """The weights of bits and tests."""
        return Weights.of(self.parameters, self.weighed)


class Server:
    """A server that answers each client's proof once, at `point`; the `first` one adds
    constants.
    """

    def __init__(self, challenges: Challenges, point: Point, first: bool) -> None:
        self._challenges, self._point, self._first = challenges, point, first
        self._answered: set[str] = set()

    def answer(self, client: str, shares: Shares, named: bytes) -> Answer:
        """Returns the answer for `client`, which `named` its challenges. Raises `Refused`."""
        if named != self._challenges.name:
            raise Refused(f"{client} answered other challenges, expected these; leave it out")
        if client in self._answered:
            raise Refused(f"{client} asks for a second answer, expected one; leave it out")
        self._answered.add(client)
        ours = self._challenges
        return answer(ours.parameters, ours.signs, ours.weights, self._point, shares, self._first)


def expanded(parameters: Parameters, seed: bytes) -> Shares:
    """Returns the second server's shares."""
    counts = (parameters.length, parameters.bits, parameters.columns + 2 * parameters.points)
    return Shares(*map(_expanded, (seed,) * 3, (b"row", b"bits", b"proof"), counts))


class Client:
    """A client that shares `row`, integers `[length]`; `seed` goes to the second server."""

    def __init__(self, parameters: Parameters, row: NDArray[np.int64]) -> None:
        self.seed = bytes(random_key())
        self._parameters, self._row = parameters, elements(row)
        self._bits = np.zeros(0, np.uint64)

    def share_row(self) -> Elements:
        """Returns the first server's share of the row."""
        return subtract(self._row, _expanded(self.seed, b"row", self._parameters.length))

    def share_bits(self, chosen: Signs) -> Elements | None:
        """Returns the first server's share of the bits under `chosen`; None if a proof would
        fail.
        """
        if not fits(self._parameters, chosen, self._row):
            return None
        self._bits = bits_of(self._parameters, chosen, self._row)
        return subtract(self._bits, _expanded(self.seed, b"bits", self._parameters.bits))

    def share_proof(self, weights: Weights) -> Elements:
        """Returns the first server's share of the proof under `weights`."""
        masks = uniform(bytes(random_key()), self._parameters.columns)
        proof = prove(self._parameters, weights, self._row, self._bits, masks)
        return subtract(proof, _expanded(self.seed, b"proof", len(proof)))


def _expanded(seed: bytes, purpose: bytes, count: int) -> Elements:
    return uniform(derive(seed, b"bounded rows", purpose), count)
