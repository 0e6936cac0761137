"""Encoded sums without their cryptography: the same numbers, and the same aborts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.noise.shares import Layers
from privfed.secure.limits import Limits
from privfed.secure.summation import Aborted, Session


class Arithmetic:
    """No cryptography: encoded rows summed modulo 2^bits, and aborts where the protocol would.

    `abort_where_lost` raises `Aborted` where too many of the session's clients leave for the
    protocol to finish its sum. A client's `layers` of noise are drawn at once as what is left of
    them in the end.
    """

    largest = math.inf

    def __init__(
        self,
        session: Session,
        codec: Codec,
        limits: Limits,
        layers: Layers | None,
        abort_where_lost: Callable[[], None],
    ) -> None:
        self._session, self._codec, self._limits = session, codec, limits
        self._layers, self._abort_where_lost, self._count = layers, abort_where_lost, 0
        self._sum = np.zeros(codec.length, dtype=np.uint64)
        if layers:  # what so few keep of a sum that nobody finishes may be too much to draw
            self._require_enough(session.sending)
            gone = len(session.clients) - session.sending
            self._keeping = layers.keeping(len(session.clients), gone, session.senders.tolist())

    def send(self, client: int, row: Integers) -> None:
        if self._layers:
            clients = len(self._session.clients)
            share = self._layers.remaining(clients, self._keeping[client])
            row = row + share.draw(self._session.layer_keys(client), self._codec.length)
        self._sum += self._codec.wrap(row)
        self._count += 1

    def total(self) -> tuple[Integers, int]:
        self._require_enough(self._count)
        return self._codec.unwrap(self._codec.wrap(self._sum.astype(np.int64))), self._count

    def _require_enough(self, count: int) -> None:
        if count < self._limits.least(len(self._session.clients)):
            raise Aborted("fewer clients sent than a sum needs")
        self._abort_where_lost()
