"""Sends bytes to nodes of Flower's grid, and returns their replies."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from privfed.core.errors import public_text

ACTION = "privfed"
"""The action that a client's app is queried for."""
MESSAGE_TYPE = f"query.{ACTION}"
_RECORD, _NAME, _TYPE, _FORM = "privfed", "b", "uint8", "raw"


def payload_content(data: bytes) -> RecordDict:
    """Returns the content of a Flower message: one record with `data` as its only array."""
    array = Array(dtype=_TYPE, shape=(len(data),), stype=_FORM, data=data)
    return RecordDict({_RECORD: ArrayRecord({_NAME: array})})


def payload_bytes(message: Message) -> bytes:
    """Returns the bytes that `message` carries.

    Raises `ValueError` for an error report, or if the content is not that of `payload_content`.
    """
    if message.has_error():
        raise ValueError("the message is an error report and carries no bytes")
    records = message.content.array_records
    if set(records) != {_RECORD} or set(records[_RECORD]) != {_NAME}:
        raise ValueError("the message does not consist of one array of bytes")
    array = records[_RECORD][_NAME]
    if (array.dtype, array.stype) != (_TYPE, _FORM) or not isinstance(array.data, bytes):
        raise ValueError("the message's array does not hold raw bytes")
    return array.data


_log = logging.getLogger(__name__)
_SPARE = 5.0
"""Seconds that a message stays valid beyond the wait for its reply, because clocks differ."""
_MAIL_PAUSES = 0.05, 0.2
"""Seconds between two polls for a reply: initial and maximum."""


@dataclass(frozen=True)
class GridMail:
    """Sends messages to nodes of Flower's `grid` and waits for their replies; thread-safe."""

    grid: Grid

    def nodes(self) -> set[int]:
        """Returns the nodes that Flower reports as alive, even if they have just stopped."""
        return set(self.grid.get_node_ids())

    def ask(self, node: int, data: bytes, deadline: float) -> bytes | None:
        """Returns the reply of `node` to `data`; None if no valid reply arrives by `deadline`.

        Also returns None if Flower raises an error. A reply is valid only if the queried node sent
        it in answer to this message. Flower may block beyond `deadline` (`time.monotonic`) if an
        upload to it stalls: call this in a thread that no other thread waits for.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        try:
            message = Message(payload_content(data), node, MESSAGE_TYPE, ttl=left + _SPARE)
            (number,) = self.grid.push_messages([message])
            return None if number is None else self._reply(node, number, deadline)
        except Exception as error:  # Flower may raise any exception, as any carrier may
            _log.warning("node %d could not be asked: %s", node, public_text(error))
            return None

    def _reply(self, node: int, number: str, deadline: float) -> bytes | None:
        """Returns the reply of `node` to the message with the id `number`.

        Returns None if Flower reports an error, or no reply arrives by `deadline`. Raises
        `ValueError` if the reply is malformed.
        """
        pause, slowest = _MAIL_PAUSES
        while (left := deadline - time.monotonic()) > 0:
            for reply in self.grid.pull_messages([number]):
                facts = reply.metadata
                if facts.reply_to_message_id != number:
                    continue
                if reply.has_error():
                    _log.warning("node %d: Flower reports error %s", node, reply.error.code)
                    return None
                if facts.src_node_id == node:
                    return payload_bytes(reply)
            time.sleep(min(pause, left))
            pause = min(pause * 1.2, slowest)
        return None
