"""One message to a node of Flower's grid, and its reply: by a deadline of our own, or nothing."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from privfed.deploy.carriers.flower.payload import MESSAGE_TYPE, carried_bytes, carrying
from privfed.errors import public_text

_log = logging.getLogger(__name__)
_SPARE = 5.0
"""Seconds that a message lives longer than anybody waits for its reply: clocks differ."""
_PAUSES = 0.05, 0.2
"""Seconds between two looks for a reply: at first, and at last."""


@dataclass(frozen=True)
class GridMail:
    """Asks nodes of the `grid`; any number of threads may."""

    grid: Grid

    def nodes(self) -> set[int]:
        """The nodes that the engine takes for alive; a killed one stays among them for a while."""
        return set(self.grid.get_node_ids())

    def ask(self, node: int, data: bytes, deadline: float) -> bytes | None:
        """The bytes that `node` replies to `data`; None where it is none of use by `deadline`.

        A reply counts only from the node that was asked, and to this very message. The engine may
        hold its caller for longer than until `deadline` (`time.monotonic`), where an upload to it
        stopped: call this in a thread that nobody waits for.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        try:
            message = Message(carrying(data), node, MESSAGE_TYPE, ttl=left + _SPARE)
            (number,) = self.grid.push_messages([message])
            return None if number is None else self._reply(node, number, deadline)
        except Exception as error:  # the engine raises what it likes, as any carrier may
            _log.warning("node %d could not be asked: %s", node, public_text(error))
            return None

    def _reply(self, node: int, number: str, deadline: float) -> bytes | None:
        """What `node` replies to message `number`. Raises `ValueError` for other than bytes."""
        pause, slowest = _PAUSES
        while (left := deadline - time.monotonic()) > 0:
            for reply in self.grid.pull_messages([number]):
                facts = reply.metadata
                if facts.reply_to_message_id != number:
                    continue
                if reply.has_error():
                    _log.warning("node %d: the engine's error %s", node, reply.error.code)
                    return None
                if facts.src_node_id == node:
                    return carried_bytes(reply)
            time.sleep(min(pause, left))
            pause = min(pause * 1.2, slowest)
        return None
