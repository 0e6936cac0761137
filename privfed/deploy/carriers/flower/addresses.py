"""Which node of Flower's grid leads to which site: the one that its agent signed a greeting at.

Node ids are the engine's, change when it likes, and enter no signed message.
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
from privfed.deploy.carriers.carrier import NOBODY
from privfed.deploy.messages.envelope import Greeter

ACTION = "privfed"
"""What a client's app is asked for."""
MESSAGE_TYPE = f"query.{ACTION}"
_RECORD, _NAME, _TYPE, _FORM = "privfed", "b", "uint8", "raw"


def carrying(data: bytes) -> RecordDict:
    """The content of a message that carries `data`."""
    array = Array(dtype=_TYPE, shape=(len(data),), stype=_FORM, data=data)
    return RecordDict({_RECORD: ArrayRecord({_NAME: array})})


def carried_bytes(message: Message) -> bytes:
    """The bytes that `message` carries. Raises `ValueError` where it has none of this form."""
    if message.has_error():
        raise ValueError("an error in the place of bytes")
    records = message.content.array_records
    if set(records) != {_RECORD} or set(records[_RECORD]) != {_NAME}:
        raise ValueError("a message of other records")
    array = records[_RECORD][_NAME]
    if (array.dtype, array.stype) != (_TYPE, _FORM) or not isinstance(array.data, bytes):
        raise ValueError("a message whose array holds no bytes")
    return array.data


_log = logging.getLogger(__name__)
_SPARE = 5.0
"""Seconds that a message lives longer than anybody waits for its reply: clocks differ."""
_MAIL_PAUSES = 0.05, 0.2
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
        pause, slowest = _MAIL_PAUSES
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


_PAUSES = 2.0, 30.0
"""Seconds until a node that led to no site is greeted again: at first, and at last."""
_SOON = 0.5
"""Seconds until a node is greeted again that led to a site, and failed it."""


@dataclass
class _Node:
    """When a node may be greeted again, and the pause after that."""

    again: float = 0.0
    pause: float = _PAUSES[0]
    greeted: bool = False
    """Whether a greeting is under way."""


@dataclass
class Addresses:
    """Finds the sites of a federation, each at the node that answered last in its name.

    A greeting is waited for so many seconds of `patience`. All methods may be called from any
    thread.
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
        """The node of `site`, looked for until `deadline`; None where it was not seen."""
        while (left := deadline - time.monotonic()) > 0:
            with self._changed:
                if site in self._node_of:
                    return self._node_of[site]
            self.look()
            with self._changed:
                self._changed.wait_for(lambda: site in self._node_of, min(left, 0.5))
        return None

    def forget(self, site: int, node: int) -> None:
        """Look for `site` anew: what was sent to it at `node` came to nothing."""
        with self._changed:
            if self._node_of.get(site) == node:
                del self._node_of[site]
                self._nodes[node] = _Node(again=time.monotonic() + _SOON)

    def doubt(self, site: int, doubtful: bool) -> None:
        """Say whether another node may lead to `site`, while its own has nobody to ask."""
        with self._changed:
            (self._doubtful.add if doubtful else self._doubtful.discard)(site)

    def look(self) -> None:
        """Begin to greet the nodes that are new, or may lead to a site that is not known."""
        with self._changed:
            if self._looking:
                return
            self._looking = True
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        try:
            for node in self._to_greet(self.mail.nodes()):
                threading.Thread(target=self._greet, args=(node,), daemon=True).start()
        except Exception as error:  # the engine's own: it is asked again
            _log.warning("the engine does not list its nodes: %s", public_text(error))
        finally:
            with self._changed:
                self._looking = False

    def _to_greet(self, alive: set[int]) -> list[int]:
        """Which of the nodes that are `alive` to greet now; the others are forgotten."""
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
