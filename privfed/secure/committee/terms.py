"""A client's expectations of a committee's sum before the call, and the common configuration."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from privfed.privacy.codec import Codec
from privfed.secure.agreement import agreement
from privfed.secure.committee.key_book import KeyBook
from privfed.secure.committee.messages import Call
from privfed.secure.committee.policy import Committee, CommitteePolicy, drawn
from privfed.secure.frames import BadMessage
from privfed.secure.limits import Limits


@functools.lru_cache(maxsize=256)
def _settings(codec: Codec, policy: CommitteePolicy, limits: Limits, book: bytes) -> bytes:
    return agreement(protocol="committee", codec=codec, policy=policy, limits=limits, book=book)


@dataclass(frozen=True)
class RoundTerms:
    """The properties of one sum, which every party knows without receiving a message.

    The keys in `book` were verified when the run began.
    """

    round: int
    exchange: int
    model_hash: bytes
    codec: Codec
    policy: CommitteePolicy
    limits: Limits
    book: KeyBook

    def call(self, clients: tuple[int, ...]) -> Call:
        """Returns the server's message that starts this sum with the cohort `clients`."""
        agreed = _settings(self.codec, self.policy, self.limits, self.book.digest)
        shape = (self.codec.bits, self.codec.length)
        return Call(self.round, self.exchange, self.model_hash, *shape, agreed, clients)

    def require(self, call: Call) -> None:
        """Raises `BadMessage` unless `call` has this sum's properties, settings and a valid roster.

        A roster has distinct clients of the book, in ascending order, at most `limits.capacity`.
        """
        expected = self.call(call.clients)
        for name in ("round", "exchange", "model_hash", "bits", "length"):
            if getattr(call, name) != getattr(expected, name):
                raise BadMessage(f"wrong {name}", "the call is for another sum than this client's")
        if call.agreement != expected.agreement:
            raise BadMessage(
                "wrong agreement",
                "the server and this client have different configurations; compare on both "
                "sides the codec, the policy, the limits, the key book of the run and the "
                "version of privfed",
            )
        clients = call.clients
        if list(clients) != sorted(set(clients)) or not set(clients) <= self.book.cards.keys():
            raise BadMessage("wrong roster", "its clients are out of order, duplicate or unknown")
        if len(clients) > self.limits.capacity:
            raise BadMessage("wrong roster", f"it has more clients than {self.limits.capacity}")

    def committee(self, clients: tuple[int, ...]) -> tuple[Committee, tuple[int, ...]]:
        """Returns the committee of a cohort and its members, in order.

        Raises `Aborted` if no committee gives the guarantees.
        """
        committee = self.policy.committee(len(clients))
        return committee, drawn(self.round, self.exchange, clients, committee.members)

    def least(self, committee: Committee) -> int:
        """Returns the smallest number of rows with which this sum may be opened."""
        return max(committee.survivors, self.limits.least(committee.clients))


def require_survivors(survivors: tuple[int, ...], clients: tuple[int, ...]) -> None:
    """Raises `BadMessage` unless `survivors` are distinct `clients` in ascending order."""
    if list(survivors) != sorted(set(survivors)) or not set(survivors) <= set(clients):
        raise BadMessage(
            "wrong survivors", "the clients are out of order, duplicate or not in the roster"
        )
