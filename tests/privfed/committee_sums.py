"""Small sums that a committee opens, for tests."""

from masked_sums import codec, session

from privfed.secure.committee.channel import CommitteeChannel, client_rings, key_book
from privfed.secure.committee.client import CommitteeClient, Turns
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits

POLICY = CommitteePolicy(0.6, 0.15, 5)
"""Of 9 clients 1 may work with the server; 6 are members, of whom 4 open a sum."""


def channel(leaves=(), clients=9, policy=POLICY, wire=None, round=1):
    of = session(clients, leaves, round)
    return CommitteeChannel(of, codec(), policy, Limits(50), wire), of


def terms(clients, policy=POLICY, limits=None, round=1):
    return RoundTerms(
        round, 0, b"h" * 32, codec(), policy, limits or Limits(50), key_book(tuple(clients))
    )


def client(me, of, row, turns=None, kind=CommitteeClient):
    ring = client_rings(tuple(of.book.cards), of.round)[me]
    return kind(me, client_identity(me), ring, of, row, turns or Turns())
