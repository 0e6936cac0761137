"""Maps sites to nodes of Flower's grid: a site's node answers a greeting with the site's signature.

Flower assigns node ids and may change them; they occur in no signed message.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, field

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from privfed.core.errors import public_text
from privfed.deploy.carriers.carrier import UNREACHABLE
from privfed.deploy.messages.envelope import Greeter

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

    Raises `ValueError` if Flower reports an error in it, or if its content has another form than
    that of `payload_content`.
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
        upload to it stalls, so call this in a thread that no other thread joins.
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


_PAUSES = 2.0, 30.0
"""Seconds until a node at which no site answered is greeted again: initial and maximum."""
_SOON = 0.5
"""Seconds until a node is greeted again after a message to its site failed."""


@dataclass
class _Node:
    """A node is greeted next at the time `again` (`time.monotonic`) or later; 0: not greeted yet.

    After the end of that greeting, the node is not greeted for `pause` seconds.
    """

    again: float = 0.0
    pause: float = _PAUSES[0]
    greeted: bool = False
    """Whether a greeting is in progress."""


@dataclass
class Addresses:
    """Finds the Flower node of each site: the node that last answered a greeting for that site.

    A greeting times out after `patience` seconds. All methods are thread-safe.
    """

    mail: GridMail
    greeter: Greeter
    patience: float = 30.0
    _node_of: dict[int, int] = field(default_factory=dict)
    _doubtful: set[int] = field(default_factory=set)
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _looking: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, site: int, deadline: float) -> int | None:
        """Returns the node of `site` once it is known; None if it is unknown at `deadline`."""
        while (left := deadline - time.monotonic()) > 0:
            with self._changed:
                if site in self._node_of:
                    return self._node_of[site]
            self.look()
            with self._changed:
                self._changed.wait_for(lambda: site in self._node_of, min(left, 0.5))
        return None

    def forget(self, site: int, node: int) -> None:
        """Discards `node` as the node of `site`, because a message to it failed.

        Does nothing if another node, or none, is known for `site`.
        """
        with self._changed:
            if self._node_of.get(site) == node:
                del self._node_of[site]
                self._nodes[node] = _Node(again=time.monotonic() + _SOON)

    def set_doubtful(self, site: int, doubtful: bool) -> None:
        """Marks the node of `site` as doubtful (no agent answers at the node), or as not doubtful.

        A site with a doubtful node is also searched at other nodes.
        """
        with self._changed:
            (self._doubtful.add if doubtful else self._doubtful.discard)(site)

    def look(self) -> None:
        """Greets, in background threads, the nodes that are not the node of any site.

        A new node is greeted once, and again only while the node of some site is unknown or
        doubtful.
        """
        with self._changed:
            if self._looking:
                return
            self._looking = True
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        try:
            for node in self._to_greet(self.mail.nodes()):
                threading.Thread(target=self._greet, args=(node,), daemon=True).start()
        except Exception as error:  # Flower's own error; the next call of `look` tries again
            _log.warning("Flower did not list its nodes: %s", public_text(error))
        finally:
            with self._changed:
                self._looking = False

    def _to_greet(self, alive: set[int]) -> list[int]:
        """Returns the `alive` nodes to greet now; forgets all nodes that are not alive."""
        now = time.monotonic()
        with self._changed:
            for site in [site for site, node in self._node_of.items() if node not in alive]:
                del self._node_of[site]
            self._nodes = {node: self._nodes.get(node, _Node()) for node in alive}
            sought = self._doubtful or len(self._node_of) < len(self.greeter.federation.sites)
            leading = set(self._node_of.values())
            chosen = [
                node
                for node, facts in self._nodes.items()
                if not facts.greeted and (not facts.again or (sought and now >= facts.again))
                if node not in leading
            ]
            for node in chosen:
                self._nodes[node].greeted = True
        return chosen

    def _greet(self, node: int) -> None:
        hello, began = self.greeter.hello(), time.monotonic()
        answer = self.mail.ask(node, hello, time.monotonic() + self.patience)
        site = None if answer is None else self.greeter.site_of(hello, answer)
        with self._changed:
            facts = self._nodes.setdefault(node, _Node())
            facts.greeted, facts.again = False, time.monotonic() + facts.pause
            facts.pause = min(2 * facts.pause, _PAUSES[1])
            if site is not None:
                self._node_of[site] = node
                self._doubtful.discard(site)
                facts.pause = _PAUSES[0]
                took = time.monotonic() - began
                _log.info("site %d is at node %d, after %.3f s", site, node, took)
            self._changed.notify_all()


@dataclass
class GridCarrier:
    """Carries bytes to sites at the nodes of their `addresses`, and back.

    Each message has its own thread, which is abandoned at the message's deadline because Flower may
    block it longer. Answers that arrive after the next message to the same site was sent are
    dropped. If no agent can be reached at a node, the node answers `UNREACHABLE`, so that no caller
    waits until the deadline.
    """

    addresses: Addresses
    _arrived: queue.SimpleQueue[tuple[int, int, bytes]] = field(default_factory=queue.SimpleQueue)
    _latest: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.addresses.look()

    def send(self, site: int, data: bytes, deadline: float) -> None:
        """Carries `data` to `site` in the background; retries after failures until `deadline`."""
        number = self._latest[site] = self._latest.get(site, 0) + 1
        self.addresses.look()  # a new node may lead to this site, too
        errand = (site, number, data, deadline)
        threading.Thread(target=self._carry, args=errand, daemon=True).start()

    def receive(self, deadline: float) -> list[tuple[int, bytes]]:
        """Waits, at most until `deadline`, for an answer to the latest message to any site.

        Returns all such (site, answer) pairs that have arrived by then; an empty list if none has.
        """
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
        """Sends `data`, the message `number` to `site`, until it is answered or `deadline` passes.

        After a failure, searches for the node of `site` again.
        """
        began = time.monotonic()
        while (node := self.addresses.wait(site, deadline)) is not None:
            answer = self.addresses.mail.ask(node, data, deadline)
            if answer is not None:
                self.addresses.set_doubtful(site, answer == UNREACHABLE)
                self._arrived.put((site, number, answer))
                took = time.monotonic() - began
                _log.info("site %d: %d bytes, %d back, %.3f s", site, len(data), len(answer), took)
                return
            self.addresses.forget(site, node)
