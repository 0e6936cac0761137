"""Accumulators of sums: they encode clients' rows as integers, or add encoded rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from privfed.core.deferred import torch
from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.core.vector import Indices
from privfed.privacy.codec import Codec, Row
from privfed.privacy.integers import Integers, Share
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.noise.shares import Layers
from privfed.secure.channel import Channel
from privfed.secure.limits import Limits
from privfed.secure.summation import Aborted, Session, SummedClients


class Arithmetic:
    """Sums encoded rows modulo 2^bits without cryptography; aborts if the protocol would abort.

    `abort_where_lost` is called before a result, and raises `Aborted` if so many of the session's
    clients drop out that the protocol could not complete. Of the noise `layers`, only those that
    remain after removal are drawn.
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
        if layers:  # for a sum that aborts, the noise of few survivors may be too large to draw
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
            raise Aborted("fewer clients sent a row than a sum requires")
        self._abort_where_lost()


class EncodedAccumulator:
    """Encodes each client's row, adds the client's `share` of noise, and sends it to the channel.

    `share` is None if there is no noise, or if the channel adds the noise (in layers or per site).
    Rows of simulated Byzantine clients (`BoundedRows.byzantine`) are encoded without clipping to
    the bound and without noise.
    """

    def __init__(
        self, session: Session, codec: Codec, bound: float, share: Share | None, channel: Channel
    ) -> None:
        self._session, self._codec, self._channel = session, codec, channel
        self._bound, self._share = bound, share
        self._added = SummedClients()

    def add(self, ids: Indices, rows: BoundedRows) -> None:
        self._added.check(ids, rows, self._bound)
        session, channel = self._session, self._channel
        keys = session.rounding_keys(ids).each()
        values = rows.rows.detach().cpu().numpy()
        byzantine = np.zeros(len(ids), bool) if rows.byzantine is None else rows.byzantine
        count = int(byzantine.sum())
        for client, row, client_keys, saturates in zip(
            ids.tolist(), values, keys, byzantine, strict=True
        ):
            if saturates:
                channel.send(
                    client, self._codec.saturated(row.astype(np.float64), count, channel.largest)
                )
            else:
                channel.send(client, self._encoded(row, client_keys))

    def _encoded(self, row: Row, keys: Keys) -> Integers:
        """Returns an honest client's encoded `row`, with its share of noise, if any.

        Raises `Refused` if the codec has no norm bound and a value exceeds `secure.range` or is not
        finite.
        """
        codec = self._codec
        if codec.clip == np.inf and not bool(np.abs(row).max(initial=0.0) <= codec.reach):
            raise Refused(
                f"secure.range is {codec.reach:g}, but an update is larger or not finite, because "
                "training diverged or the range is too small for weighted updates; lower "
                "client.lr, or raise secure.range (and secure.bits)"
            )
        encoded = codec.encode(row, keys)
        if self._share:
            encoded += self._share.draw(keys.derived(b"noise"), codec.length)
        return encoded

    def close(self) -> BoundedSum:
        summed, survivors = self._channel.total()
        total = torch.from_numpy(self._codec.decode(summed))
        return BoundedSum(total, self._codec.bound * self._codec.step, survivors)
