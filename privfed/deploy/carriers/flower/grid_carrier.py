"""Flower's grid as a carrier of a federation's bytes."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, field

from privfed.deploy.carriers.carrier import NOBODY
from privfed.deploy.carriers.flower.addresses import Addresses

_log = logging.getLogger(__name__)


@dataclass
class GridCarrier:
    """Carries bytes to sites at the nodes of their `addresses`, and back.

    Each message has a thread, which is abandoned at its deadline: the engine may hold it longer.
    What arrives after the next message to the same site was sent is dropped. A node that answers,
    but has no agent, answers `NOBODY` in the site's place, so that nobody waits for it.
    """

    addresses: Addresses
    _arrived: queue.SimpleQueue[tuple[int, int, bytes]] = field(default_factory=queue.SimpleQueue)
    _latest: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.addresses.look()

    def send(self, site: int, data: bytes, deadline: float) -> None:
        """Begin to carry `data` to `site`, as long as an answer may be back by `deadline`."""
        number = self._latest[site] = self._latest.get(site, 0) + 1
        self.addresses.look()  # a node that is new may lead to this site too
        errand = (site, number, data, deadline)
        threading.Thread(target=self._carry, args=errand, daemon=True).start()

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """Answers to the latest message of each site; none where there are none by `deadline`."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                arrived = [self._arrived.get(timeout=left)]
            except queue.Empty:
                break
            while not self._arrived.empty():
                arrived.append(self._arrived.get())
            if answers := [(s, data) for s, n, data in arrived if n == self._latest[s]]:
                return answers
        return []

    def _carry(self, site: int, number: int, data: bytes, deadline: float) -> None:
        """Ask `site`, at another node where one came to nothing, until it answers or is late."""
        began = time.monotonic()
        while (node := self.addresses.wait(site, deadline)) is not None:
            answer = self.addresses.mail.ask(node, data, deadline)
            if answer is not None:
                self.addresses.doubt(site, answer == NOBODY)
                self._arrived.put((site, number, answer))
                took = time.monotonic() - began
                _log.info("site %d: %d bytes, %d back, %.3f s", site, len(data), len(answer), took)
                return
            self.addresses.forget(site, node)
