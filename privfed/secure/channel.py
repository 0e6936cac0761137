"""Delivery of messages in a simulated sum, and the interface `Channel` of sums of encoded rows."""

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
    """Carries messages unchanged. Tests replace it by wires that change or lose messages."""

    def carry(self, client: int, data: bytes, upward: bool) -> bytes | None:
        """Returns the bytes that arrive, or None if they are lost.

        Args:
          client: the client that sends or receives.
          data: the encoded message.
          upward: True if the client sends it to the server; False if it receives it.
        """
        return data


@dataclass
class Delivery:
    """Passes messages of `server` to each client's `handle`, and answers to the server's `handle`.

    The `session` states the stage at which each client drops out. A client also counts as dropped
    out if it refuses the server's message or the server refuses its answer; `faults` lists the
    reasons for these refusals.
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
        """The stage at which each client drops out (`Leaves`), by client."""
        clients = self.session.clients.tolist()
        leaves = self.session.leaves.tolist() or [Leaves.NEVER] * len(clients)
        return dict(zip(clients, leaves, strict=True))

    def ask(self, sent: Mapping[int, Any], stage: int) -> None:
        """Delivers to each client its message in `sent`, and to the server the client's answer.

        Clients that drop out at `stage` or at an earlier one receive nothing. Refusals by a client
        or by the server are added to `faults`.
        """
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
        """Context manager that, when its block ends or raises, reports the server's culprits.

        They are reported to the session. An `Aborted` that the block raises also states the first
        of `faults`, if there is one.
        """
        try:
            yield
        except Aborted as aborted:
            first = f" (first refused: {self.faults[0]})" if self.faults else ""
            raise Aborted(f"{aborted}{first}") from aborted
        finally:
            for culprit in self.server.culprits:
                self.session.accuse(culprit)


class Channel(Protocol):
    """Sums clients' integer rows, and hides each row from the party that operates the channel."""

    largest: float
    """The largest absolute value of a number that is accepted in a client's row."""

    def send(self, client: int, row: Integers) -> None:
        """Adds one client's encoded row `[m]`, with its layers of noise if the channel has any."""

    def total(self) -> tuple[Integers, int]:
        """Returns the sum `[m]` of the rows of surviving clients (or sites), and their number.

        Raises:
          Aborted: if the sum cannot be completed.
        """
