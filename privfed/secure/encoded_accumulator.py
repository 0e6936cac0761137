"""Rows on their way into an encoded sum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfed.deferred import torch
from privfed.errors import Refused
from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers
from privfed.privacy.mechanism import BoundedRows, BoundedSum, Encoding
from privfed.privacy.noise.shares import Layers
from privfed.secure.channel import Channel
from privfed.secure.plain_sum import Once
from privfed.secure.summation import Session
from privfed.streams import Keys
from privfed.vector import Indices


class EncodedAccumulator:
    """Encodes each client's row, as the client would, and hands it to the channel.

    Simulated attackers' rows (`BoundedRows.hostile`) are encoded as they are, without the bound
    and without noise.
    """

    def __init__(
        self, session: Session, codec: Codec, encoding: Encoding, channel: Channel
    ) -> None:
        self._session, self._codec, self._channel = session, codec, channel
        self._bound = encoding.bound
        self._noise = None if isinstance(encoding.noise, Layers) else encoding.noise
        self._added = Once()

    def add(self, ids: Indices, rows: BoundedRows) -> None:
        self._added.check(ids, rows, self._bound)
        session, channel = self._session, self._channel
        keys = session.streams.at(f"noise/rounding/{session.exchange}", session.round, ids).each()
        values = rows.rows.detach().cpu().double().numpy()
        hostile = np.zeros(len(ids), bool) if rows.hostile is None else rows.hostile
        count = int(hostile.sum())
        for client, row, client_keys, lies in zip(ids.tolist(), values, keys, hostile, strict=True):
            encoded = (
                self._codec.saturated(row, count, channel.largest)
                if lies
                else self._encoded(row, client_keys)
            )
            channel.send(client, encoded)

    def _encoded(self, row: NDArray[np.float64], keys: Keys) -> Integers:
        """What an honest client sends of its `row`: whole numbers, with its share of noise."""
        codec = self._codec
        if codec.clip == np.inf and not bool(np.abs(row).max(initial=0.0) <= codec.reach):
            raise Refused(
                f"what a client would send is beyond secure.range = {codec.reach:g}, or not "
                "finite: training diverged, or the range is too small for weighted updates; "
                "lower client.lr, or raise secure.range (and secure.bits)"
            )
        encoded = codec.encode(row, keys)
        if self._noise:
            encoded = encoded + self._noise.draw(keys.derived(b"noise"), codec.length)
        return encoded

    def close(self) -> BoundedSum:
        summed, survivors = self._channel.total()
        total = torch.from_numpy(self._codec.decode(summed))
        return BoundedSum(total, self._codec.bound * self._codec.step, survivors)
