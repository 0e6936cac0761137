"""The interface of transports between a coordinator and its sites, and an in-process transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

UNREACHABLE = b"\xff"
"""Bytes that a carrier returns if no agent can be reached; no site answers with these bytes."""
Site = Callable[[bytes], bytes]
"""A site: a function from the bytes of a message to the bytes of its answer."""


class Carrier(Protocol):
    """Carries bytes to sites and back; it may lose, swap or delay them.

    Neither sums nor charges rely on a carrier: messages are signed and bound to their context, and
    content for the coordinator alone is encrypted to its key. Two kinds of answers are not signed:
    a site's refusals, and the last ledger head that a site reports. A carrier can forge both, just
    as it can lose answers.
    """

    def send(self, site: int, data: bytes, deadline: float) -> None:
        """Sends a message to a site.

        Args:
          site: number of the site.
          data: the bytes of the message.
          deadline: time (`time.monotonic`) after which an answer is useless.
        """

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """Waits for an answer, at most until `deadline` (`time.monotonic`).

        Returns the (site, answer) pairs that arrived, in any order; empty if none did.
        """


class Loopback:
    """A carrier to sites in this process; each answers as soon as a message is sent to it."""

    def __init__(self, sites: Mapping[int, Site]) -> None:
        self._sites = sites
        self._arrived: list[tuple[int, bytes]] = []

    def send(self, site: int, data: bytes, deadline: float) -> None:
        self._arrived.append((site, self._sites[site](data)))

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        arrived, self._arrived = self._arrived, []
        return arrived
