"""What carries bytes between a coordinator and its sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

NOBODY = b"\xff"
"""What a carrier brings in the place of an answer where nobody can be asked; no site answers so."""
Asked = Callable[[bytes], bytes]
"""A site: the bytes of its answer to the bytes of a message."""


class Carrier(Protocol):
    """Carries bytes to sites and back, and may lose them, swap them, or hold them up.

    No sum and no charge rests on it: what they are made of is signed, and bound to what it is
    about, and what the coordinator alone may see is sealed. That a site declines, or has seen some
    line of the ledger, is not signed: a carrier can say so in its place, as it can lose its answer.
    """

    def send(self, site: int, data: bytes, deadline: float) -> None:
        """Send `data` to `site`, whose answer is of no use after `deadline` (`time.monotonic`)."""
        ...

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """Answers that have arrived, in any order; none where there are none by `deadline`."""
        ...


class Loopback:
    """Sites in this process, each asked as soon as a message is sent to it."""

    def __init__(self, sites: Mapping[int, Asked]) -> None:
        self._sites = sites
        self._arrived: list[tuple[int, bytes]] = []

    def send(self, site: int, data: bytes, deadline: float) -> None:
        self._arrived.append((site, self._sites[site](data)))

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        arrived, self._arrived = self._arrived, []
        return arrived
