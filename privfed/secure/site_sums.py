"""Sums of rows inside sites: each site adds up its own clients' rows, and sends that sum once."""

from __future__ import annotations

import numpy as np

from privfed.privacy.codec import Codec
from privfed.privacy.integers import Integers, Share
from privfed.secure.channel import Channel
from privfed.secure.summation import Session


class SiteSums:
    """A channel whose parties are sites: it takes the encoded rows of clients, and keeps sums.

    What a site sends is the sum of its drawn clients' encoded rows, each bounded by itself, plus
    the site's `share` of noise, also where nobody was drawn; layers of noise are added by the
    protocol. So a client moves the total by its own encoded row, whose norm the codec bounds: no
    sum is rounded (PRIVACY, sections 9.1 and 9.3). Memory is one row `[m]` for each site.
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
