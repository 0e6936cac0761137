"""The interface of transports between a coordinator and its sites, and an in-process transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

UNREACHABLE = b"\xff"
"""Bytes that a carrier returns if no agent can be reached; no site answers with these bytes."""
Site = Callable[[bytes], bytes]
"""A site: a function from the bytes of a message to the bytes of its answer."""


class Carrier(Protocol):
    """Carries messages to sites, and their answers back; it may lose, swap or delay them.

    Neither sums nor charges rely on a carrier: messages are signed and bound to their context, and
    content for the coordinator alone is encrypted to its key. Three kinds of answers are not
    signed, so a carrier can forge them: refusals; the hash of the last ledger line that a site has;
    and a site's confirmation that its receipts contain an exchange (a request for one sum).
    """

    def send(self, site: int, data: bytes, deadline: float) -> None:
        """Sends a message to a site; its answer is returned by `receive`.

        Args:
          site: number of the site.
          data: the bytes of the message.
          deadline: time by `time.monotonic`, in seconds, after which an answer is not used.
        """

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """Waits for an answer, at most until the time `deadline` by `time.monotonic`.

        Returns (site, answer) pairs that have arrived and were not returned before, in any order:
        at least one, or an empty list if none arrives in time.
        """


class Loopback:
    """A carrier to sites in this process: `send` calls the site, and waits for its answer.

    The next call of `receive` returns that answer at once; deadlines are ignored.
    """

    def __init__(self, sites: Mapping[int, Site]) -> None:
        self._sites = sites
        self._arrived: list[tuple[int, bytes]] = []

    def send(self, site: int, data: bytes, deadline: float) -> None:
        self._arrived.append((site, self._sites[site](data)))

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        arrived, self._arrived = self._arrived, []
        return arrived
