"""Small sums that a committee opens, for tests, and wires that change clients' messages."""

from collections import Counter
from dataclasses import replace

from masked_sums import codec, session

from privfed.secure.channel import Wire
from privfed.secure.committee.channel import CommitteeChannel, run_of
from privfed.secure.committee.client import CommitteeClient
from privfed.secure.committee.messages import message_bytes, read_message
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits

POLICY = CommitteePolicy(0.6, 0.15, 5)
"""Of 9 clients 1 may collude with the server; 6 are members, and 4 of these open a sum."""


def channel(leaves=(), clients=9, policy=POLICY, wire=None, round=1, byzantine=0, accuse=None):
    of = session(clients, leaves, round)
    of = replace(of, accuse=accuse) if accuse else of
    return CommitteeChannel(of, codec(), policy, Limits(50, byzantine=byzantine), wire), of


def terms(clients, policy=POLICY, limits=None, round=1):
    book = run_of(tuple(clients), round, 0).book
    return RoundTerms(round, 0, b"h" * 32, codec(), policy, limits or Limits(50), book)


def ring_of(me, of):
    """Returns a client's ring for the sum of these terms."""
    run = run_of(tuple(of.book.cards), of.round, of.exchange)
    assert run.book is of.book, "the run of these terms is over"
    return run.rings[me]


def client(me, of, row, ring=None, kind=CommitteeClient):
    return kind(client_identity(me), ring or ring_of(me, of), of, row)


def members(of):
    return of.server._members


class Changing(Wire):
    """A wire that changes messages of a `kind` to or from `victims`, and counts all messages."""

    def __init__(self, kind=None, change=None, victims=(), upward=True):
        self.kind, self.change, self.victims, self.upward = kind, change, victims, upward
        self.count, self.sizes = Counter(), Counter()

    read = staticmethod(read_message)

    def carry(self, client, data, upward):
        if upward:
            self.count[client] += 1
            self.sizes[type(read_message(data)).__name__] = len(data)
        message = read_message(data)
        if client not in self.victims or upward is not self.upward:
            return data
        if not isinstance(message, self.kind):
            return data
        changed = self.change(message)
        if isinstance(changed, bytes):
            return changed
        return message_bytes(changed.signed(client_identity(client)) if upward else changed)


def named(ready):
    return {culprit.client: culprit.reason for culprit in ready.server.culprits}


def spoiled(opening):
    (who, text), *rest = opening.shares
    return replace(opening, shares=((who, bytes([text[0] ^ 1]) + text[1:]), *rest))


def garbled(count):
    def change(message):
        texts = (bytes(48),) * count + message.sealed[count:]
        return replace(message, sealed=texts)

    return change
