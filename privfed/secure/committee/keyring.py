"""A client's key ring: secrets shared with all clients of a run, new for each exchange.

**Guarantee.** Let `store` be durable and atomic when it returns (a temporary file of mode 0600,
fsync, rename, fsync of the folder), and let an interrupted client resume only from the last stored
state, in one process at a time. Then, whenever it is killed, it sends for at most one call of an
exchange. No secret of an exchange is used in two sums: before the secrets are used, a state is
stored that does not determine them. A client that is killed after it stored this state and before
its answer counts as a dropout of this exchange, and takes part in the next one. The same holds for
a member that is killed before it opened its shares. A client that never stored a key ring has lost
its keys, as the private key is not stored: it is excluded from the run.

**Limits.** From the state alone, a process cannot distinguish an old state from the last one: a
client that resumes from an old state sends again. Other clients must count such a client as
colluding with the server, and its own rows have no guarantee. So the client's owner records each
exchange before the answer is sent (`after`), and an older state is refused as stale. This check
detects neither a folder in which state and record were both rolled back nor a copy that runs
elsewhere.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from privfed.secure.committee.key_book import KeyBook, KeyCard, agree, run_secret
from privfed.secure.frames import NUMBER, BadMessage, Reader, records
from privfed.secure.masked.client_state import BadState
from privfed.secure.primitives import KEY, KeyPair

_FORMAT = b"PFC1"
_ENTRY = struct.Struct(f"<Q{KEY}s{KEY}s")
_BEFORE_ALL = (-1, -1)


def _unstored(data: bytes) -> None:
    """Stores nothing: a client that crashes cannot continue in the run."""


@dataclass(frozen=True, repr=False)
class _Chain:
    """A hash chain of two clients' secrets, which neither can compute backwards.

    `rounds` determines the secrets of later rounds, `exchanges` those of this round's remaining
    exchanges.
    """

    rounds: bytes
    exchanges: bytes

    @classmethod
    def of_round(cls, secret: bytes) -> Self:
        """Returns the chain at the beginning of a round with the initial `secret`."""
        return cls(_hashed(b"round", secret), _hashed(b"exchanges", secret))

    def after(self, rounds: int, exchanges: int) -> _Chain:
        """Returns the chain after a number of further `rounds`, and then of further `exchanges`.

        Each further round begins with its exchange 0.
        """
        chain = self
        for _ in range(rounds):
            chain = self.of_round(chain.rounds)
        for _ in range(exchanges):
            chain = _Chain(chain.rounds, _hashed(b"next", chain.exchanges))
        return chain

    @property
    def secret(self) -> bytes:
        """The secret of the next exchange; later states (`after`) do not determine it."""
        return _hashed(b"exchange", self.exchanges)


class Keyring:
    """The secrets that the holder of `card` and its key `pair` shares with all clients of a `book`.

    The holder itself is one of these clients. The book must be checked beforehand. The ring does
    not keep the private key. The attribute `book` is the book's hash, `next` the first exchange, as
    (round, exchange), with available secrets. `store` receives the result of `to_bytes` when the
    ring is created, and before `take` returns secrets.

    Raises:
      BadMessage: if the book lacks `card`, or `card` has another key than `pair`.
    """

    def __init__(
        self,
        pair: KeyPair,
        card: KeyCard,
        book: KeyBook,
        store: Callable[[bytes], None] = _unstored,
    ) -> None:
        if book.cards.get(card.client) != card or card.public != pair.public:
            raise BadMessage("wrong card", "the book lacks this client's key card")
        self.me, self.book, self.next, self._store = card.client, book.digest, (0, 0), store
        self._chains = {
            other: _Chain.of_round(
                run_secret(book.digest, agree(pair, theirs.public), card.client, other)
            )
            for other, theirs in book.cards.items()
        }
        store(self.to_bytes())

    def take(self, round: int, exchange: int) -> Mapping[int, bytes]:
        """Returns the secret `[32]` shared with each client of the book for this exchange.

        The client itself is included. A state that does not determine these secrets is stored
        first.

        Raises:
          BadMessage: if the exchange is not later than every exchange taken before.
        """
        if (round, exchange) < self.next:
            raise BadMessage("answered already", "the call is for an exchange in the past")
        rounds = round - self.next[0]
        steps = rounds, exchange - (0 if rounds else self.next[1])
        chains = {other: chain.after(*steps) for other, chain in self._chains.items()}
        self._chains = {other: chain.after(0, 1) for other, chain in chains.items()}
        self.next = (round, exchange + 1)
        self._store(self.to_bytes())
        return {other: chain.secret for other, chain in chains.items()}

    def to_bytes(self) -> bytes:
        """Returns the bytes of the ring. They hold secrets; only their owner may read them."""
        entries = (
            _ENTRY.pack(other, chain.rounds, chain.exchanges)
            for other, chain in sorted(self._chains.items())
        )
        numbers = b"".join(map(NUMBER.pack, (self.me, *self.next)))
        data = _FORMAT + self.book + numbers + records(list(entries))
        return data + hashlib.sha256(data).digest()

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        me: int,
        book: KeyBook,
        store: Callable[[bytes], None],
        after: tuple[int, int] = _BEFORE_ALL,
    ) -> Self:
        """Returns the ring of client `me` in `book`, restored from the result of `to_bytes`.

        Raises:
          BadState: if the bytes are damaged, of another format, client or book, or if the ring
            still has the secrets of exchange `after`: a pair (round, exchange) that its owner
            recorded as answered (default: none).
        """
        content, check = data[:-KEY], data[-KEY:]
        if hashlib.sha256(content).digest() != check or content[:3] != _FORMAT[:3]:
            raise BadState("damaged", "the bytes are not what a client stored")
        if not content.startswith(_FORMAT):
            raise BadState("other format", "another version of privfed wrote the key ring")
        reader = Reader(content[len(_FORMAT) :])
        try:
            digest, owner, last = reader.take(KEY), reader.number(), _pair(reader)
            entries = tuple(reader.records(_ENTRY))
            reader.end()
        except BadMessage as error:
            raise BadState("damaged", str(error)) from error
        if (digest, owner) != (book.digest, me):
            raise BadState("foreign", "the key ring is of another client or another run")
        if [other for other, *_ in entries] != sorted(book.cards):
            raise BadState("damaged", "the key ring has secrets of clients outside the book")
        if last <= after:
            where = f"exchange {after[1]} of round {after[0]}"
            raise BadState("stale", f"the key ring is older than {where}")
        ring = cls.__new__(cls)
        ring.me, ring.book, ring.next, ring._store = me, digest, last, store
        ring._chains = {other: _Chain(*secrets) for other, *secrets in entries}
        return ring


def _pair(data: Reader) -> tuple[int, int]:
    return data.number(), data.number()


def _hashed(purpose: bytes, secret: bytes) -> bytes:
    return hashlib.sha256(b"privfed committee " + purpose + b" " + secret).digest()
