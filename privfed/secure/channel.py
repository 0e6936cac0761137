"""What carries encoded rows to their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from privfed.privacy.integers import Integers
from privfed.secure.limits import Leaves
from privfed.secure.summation import Aborted, Session


class Wire:
    """Carries bytes; a test's wire may change or lose them."""

    def carry(self, client: int, data: bytes, upward: bool) -> bytes | None:
        """What arrives of `data` from `client` to the server (`upward`), or the other way.

        None where it is lost.
        """
        return data


@dataclass
class Delivery:
    """Brings the `server`'s messages to its `clients`, and their answers back, each by `handle`.

    The `session` says who drops out when, and is told the server's `culprits`. Who is refused by
    name, or refuses, counts as dropped; `faults` lists the names.
    """

    wire: Wire
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    server: Any
    clients: Mapping[int, Any]
    session: Session
    faults: list[str] = field(default_factory=list)

    @cached_property
    def leaves(self) -> dict[int, int]:
        """When each client leaves."""
        clients = self.session.clients.tolist()
        leaves = self.session.leaves.tolist() or [Leaves.NEVER] * len(clients)
        return dict(zip(clients, leaves, strict=True))

    def ask(self, sent: Mapping[int, Any], stage: int) -> None:
        """Deliver messages to who has not left by `stage`, and their answers to the server."""
        for client, message in sent.items():
            if 0 < self.leaves[client] <= stage:
                continue
            try:
                self._deliver(client, message)
            except Aborted as refused:
                self.faults.append(str(refused))

    def _deliver(self, client: int, message: Any) -> None:
        if (arrived := self._carry(client, message, upward=False)) is None:
            return
        answer = self._carry(client, self.clients[client].handle(arrived), upward=True)
        if answer is not None:
            self.server.handle(client, answer)

    def _carry(self, client: int, message: Any, upward: bool) -> Any:
        data = self.wire.carry(client, self.encode(message), upward)
        return None if data is None else self.decode(data)

    @contextmanager
    def accusing(self) -> Iterator[None]:
        """Accuse whom the server proved to lie by then; an abort says what was refused first."""
        try:
            yield
        except Aborted as aborted:
            first = f" (first refused: {self.faults[0]})" if self.faults else ""
            raise Aborted(f"{aborted}{first}") from aborted
        finally:
            for culprit in self.server.culprits:
                self.session.accuse(culprit)


class Channel(Protocol):
    """Carries whole numbers of clients to their sum. Whoever runs it sees no client's numbers."""

    largest: float
    """The largest number that it takes from a client."""

    def send(self, client: int, row: Integers) -> None:
        """One client's encoded row `[m]`, to which layers of noise are yet to come."""
        ...

    def total(self) -> tuple[Integers, int]:
        """The sum of those who sent and stayed, and how many they are. Raises `Aborted`."""
        ...
