"""What carries bytes between a coordinator and its sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

Asked = Callable[[bytes], bytes]
"""A site: the bytes of its answer to the bytes of a message."""


class Carrier(Protocol):
    """Carries bytes to sites and back, and may lose them, swap them, or hold them up.

    Nothing rests on it: messages are signed, and bound to what they are about.
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
