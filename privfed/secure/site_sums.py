"""Sums over sites: the encoded rows of each site's clients are added up before they are sent."""

from __future__ import annotations

import numpy as np

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers, Share
from privfed.secure.channel import Channel
from privfed.secure.summation import Session


class SiteSums:
    """A channel whose parties are sites: takes clients' encoded rows and keeps one sum per site.

    A site sends the sum of its sampled clients' encoded rows, each bounded individually, plus the
    site's `share` of noise. It sends even if none of its clients was sampled. (If noise is in
    layers, the protocol adds it, and `share` is None.) No sum is rounded, so one client changes the
    total by its own encoded row, whose norm the codec bounds (rules of proof, sections 9.1 and
    9.3). Memory is one row `[m]` per site.
    """

    def __init__(
        self, session: Session, codec: Codec, channel: Channel, share: Share | None
    ) -> None:
        if session.sites is None:
            raise ValueError("a sum over sites needs the site of each client")
        self._session, self._site_of = session, session.sites
        self._codec, self._channel, self._share = codec, channel, share
        self.largest = channel.largest
        self._sums = {site: np.zeros(codec.length, np.int64) for site in session.clients.tolist()}

    def send(self, client: int, row: Integers) -> None:
        self._sums[int(self._site_of[client])] += row

    def add(self, site: int, row: Integers) -> None:
        """Adds `row` `[m]`, a sum of encoded rows of clients of `site`."""
        self._sums[site] += row

    def total(self) -> tuple[Integers, int]:
        session, senders = self._session, self._session.senders
        stream = f"noise/site/{session.exchange}"
        keys = session.streams.at(stream, session.round, senders).each()
        for site, site_keys in zip(senders.tolist(), keys, strict=True):
            row = self._sums.pop(site)
            if self._share:
                row += self._share.draw(site_keys, self._codec.length)
            self._channel.send(site, row)
        return self._channel.total()


class StoredRow:
    """A channel of a sum that stores the site's single row in `row` instead of sending it."""

    largest = float("inf")

    def __init__(self) -> None:
        self.row: Integers = np.empty(0, dtype=np.int64)

    def send(self, client: int, row: Integers) -> None:
        self.row = row

    def total(self) -> tuple[Integers, int]:
        return self.row, 1
