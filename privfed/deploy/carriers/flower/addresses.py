"""Which node of Flower's grid leads to which site: the one that its agent signed a greeting at.

Node ids are the engine's, change when it likes, and enter no signed message.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from privfed.deploy.carriers.flower.grid_mail import GridMail
from privfed.deploy.messages.hello import Greeter
from privfed.errors import public_text

_log = logging.getLogger(__name__)
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
