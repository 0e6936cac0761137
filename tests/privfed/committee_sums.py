"""Small sums that a committee opens, for tests."""

from masked_sums import codec, session

from privfed.secure.committee.channel import CommitteeChannel
from privfed.secure.committee.client import CommitteeClient
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.simulated_run import run_of
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits

POLICY = CommitteePolicy(0.6, 0.15, 5)
"""Of 9 clients 1 may work with the server; 6 are members, of whom 4 open a sum."""


def channel(leaves=(), clients=9, policy=POLICY, wire=None, round=1):
    of = session(clients, leaves, round)
    return CommitteeChannel(of, codec(), policy, Limits(50), wire), of


def terms(clients, policy=POLICY, limits=None, round=1):
    book = run_of(tuple(clients), round, 0).book
    return RoundTerms(round, 0, b"h" * 32, codec(), policy, limits or Limits(50), book)


def ring_of(me, of):
    """The ring of a client for the sum of these terms."""
    run = run_of(tuple(of.book.cards), of.round, of.exchange)
    assert run.book is of.book, "the run of these terms is over"
    return run.rings[me]


def client(me, of, row, ring=None, kind=CommitteeClient):
    return kind(client_identity(me), ring or ring_of(me, of), of, row)
