"""Sites whose sockets can be reached from here: on this machine, or forwarded, as OpenSSH does."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from privfed.deploy.carriers.carrier import NOBODY
from privfed.deploy.carriers.local_socket import ask

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sockets:
    """Asks each site at the socket of its `paths`, all at once, each in a thread."""

    paths: Mapping[int, Path]
    _arrived: queue.Queue[tuple[int, int, bytes]] = field(default_factory=queue.Queue)
    _sent: dict[int, int] = field(default_factory=dict)

    def send(self, site: int, data: bytes, deadline: float) -> None:
        """Ask the socket of `site`; an answer to anything that it was asked before is lost.

        A site without a socket answers nothing, at once: nobody waits for it.
        """
        number = self._sent[site] = self._sent.get(site, 0) + 1
        if site not in self.paths:
            self._arrived.put((site, number, NOBODY))
            return
        asking = (site, number, data, deadline)
        threading.Thread(target=self._ask, args=asking, daemon=True).start()

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """The next answer; none where there is none by `deadline`."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                site, number, answer = self._arrived.get(timeout=left)
            except queue.Empty:
                break
            if number == self._sent[site]:
                return [(site, answer)]
        return []

    def _ask(self, site: int, number: int, data: bytes, deadline: float) -> None:
        try:
            answer = ask(self.paths[site], data, max(0.01, deadline - time.monotonic()))
        except OSError as error:  # nobody listens, or is late
            _log.debug("%s: %s", self.paths[site], error)
            answer = NOBODY
        self._arrived.put((site, number, answer))
