"""Finds the node of an engine that leads to each site, and carries bytes to it.

An engine (Flower, NVIDIA FLARE) names its nodes itself and may change the names; they occur in no
signed message. The node of a site answers a greeting with the site's signature.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from privfed.core.errors import public_text
from privfed.deploy.carriers.carrier import UNREACHABLE
from privfed.deploy.messages.envelope import Greeter

_log = logging.getLogger(__name__)
NodeT = TypeVar("NodeT", bound=Hashable)


class Mail(Protocol[NodeT]):
    """Sends messages to an engine's nodes and waits for their replies; thread-safe."""

    def nodes(self) -> set[NodeT]:
        """Returns the nodes that the engine reports as alive, even if they have just stopped."""

    def ask(self, node: NodeT, data: bytes, deadline: float) -> bytes | None:
        """Returns the reply of `node` to `data`; None if none arrives by `deadline`.

        Also returns None if the engine raises an error. May block beyond `deadline`
        (`time.monotonic`): call this in a thread that no other thread waits for.
        """


_PAUSES = 2.0, 30.0
"""Seconds until a node at which no site answered is greeted again: initial and maximum."""
_SOON = 0.5
"""Seconds until a node is greeted again after a message to its site failed."""


@dataclass
class _Node:
    """The earliest time `again` (`time.monotonic`) of a node's next greeting; 0: not greeted yet.

    When a greeting ends, `again` is set to `pause` seconds later.
    """

    again: float = 0.0
    pause: float = _PAUSES[0]
    greeted: bool = False
    """Whether a greeting is in progress."""


@dataclass
class Addresses(Generic[NodeT]):
    """Finds the node of each site: the node that last answered a greeting for that site.

    A greeting times out after `patience` seconds. All methods are thread-safe.
    """

    mail: Mail[NodeT]
    greeter: Greeter
    patience: float = 30.0
    _node_of: dict[int, NodeT] = field(default_factory=dict)
    _doubtful: set[int] = field(default_factory=set)
    _nodes: dict[NodeT, _Node] = field(default_factory=dict)
    _looking: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, site: int, deadline: float) -> NodeT | None:
        """Returns the node of `site` once it is known; None if it is unknown at `deadline`."""
        while (left := deadline - time.monotonic()) > 0:
            with self._changed:
                if site in self._node_of:
                    return self._node_of[site]
            self.look()
            with self._changed:
                self._changed.wait_for(lambda: site in self._node_of, min(left, 0.5))
        return None

    def forget(self, site: int, node: NodeT) -> None:
        """Discards `node` as the node of `site`, because a message to it failed.

        Does nothing if another node, or none, is known for `site`.
        """
        with self._changed:
            if self._node_of.get(site) == node:
                del self._node_of[site]
                self._nodes[node] = _Node(again=time.monotonic() + _SOON)

    def set_doubtful(self, site: int, doubtful: bool) -> None:
        """Marks the node of `site` as doubtful (no agent answers at the node), or as not doubtful.

        While any node is doubtful, `look` also greets nodes again that it has greeted before.
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
        except Exception as error:  # the engine's error; the next call of `look` tries again
            _log.warning("the engine did not list its nodes: %s", public_text(error))
        finally:
            with self._changed:
                self._looking = False

    def _to_greet(self, alive: set[NodeT]) -> list[NodeT]:
        """Returns the `alive` nodes to greet now; forgets all nodes that are not `alive`."""
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

    def _greet(self, node: NodeT) -> None:
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
                _log.info("site %d is at node %s, after %.3f s", site, node, took)
            self._changed.notify_all()


@dataclass
class AddressedCarrier(Generic[NodeT]):
    """Carries bytes to sites at the nodes of their `addresses`, and back.

    Each message has its own thread, which is abandoned at the message's deadline because an engine
    may block it longer. Answers that arrive after the next message to the same site was sent are
    dropped. If no agent runs at a site's node, the node's program answers `UNREACHABLE`, so that no
    caller waits for the site.
    """

    addresses: Addresses[NodeT]
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
