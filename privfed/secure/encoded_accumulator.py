"""Rows on their way into an encoded sum."""

from __future__ import annotations

import numpy as np

from privfed.deferred import torch
from privfed.errors import Refused
from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers, Share
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.rounding import Row
from privfed.secure.channel import Channel
from privfed.secure.plain_sum import Once
from privfed.secure.summation import Session
from privfed.streams import Keys
from privfed.vector import Indices


class EncodedAccumulator:
    """Encodes each client's row, and hands it to the channel, with the client's `share` of noise.

    Simulated attackers' rows (`BoundedRows.hostile`) are encoded as they are, without the bound
    and without noise.
    """

    def __init__(
        self, session: Session, codec: Codec, bound: float, share: Share | None, channel: Channel
    ) -> None:
        self._session, self._codec, self._channel = session, codec, channel
        self._bound, self._share = bound, share
        self._added = Once()

    def add(self, ids: Indices, rows: BoundedRows) -> None:
        self._added.check(ids, rows, self._bound)
        session, channel = self._session, self._channel
        keys = session.rounding_keys(ids).each()
        values = rows.rows.detach().cpu().numpy()
        hostile = np.zeros(len(ids), bool) if rows.hostile is None else rows.hostile
        count = int(hostile.sum())
        for client, row, client_keys, lies in zip(ids.tolist(), values, keys, hostile, strict=True):
            if lies:
                channel.send(
                    client, self._codec.saturated(row.astype(np.float64), count, channel.largest)
                )
            else:
                channel.send(client, self._encoded(row, client_keys))

    def _encoded(self, row: Row, keys: Keys) -> Integers:
        """Whole numbers for an honest client's `row`, with its share of noise if it adds one."""
        codec = self._codec
        if codec.clip == np.inf and not bool(np.abs(row).max(initial=0.0) <= codec.reach):
            raise Refused(
                f"what a client would send is beyond secure.range = {codec.reach:g}, or not "
                "finite: training diverged, or the range is too small for weighted updates; "
                "lower client.lr, or raise secure.range (and secure.bits)"
            )
        encoded = codec.encode(row, keys)
        if self._share:
            encoded += self._share.draw(keys.derived(b"noise"), codec.length)
        return encoded

    def close(self) -> BoundedSum:
        summed, survivors = self._channel.total()
        total = torch.from_numpy(self._codec.decode(summed))
        return BoundedSum(total, self._codec.bound * self._codec.step, survivors)
