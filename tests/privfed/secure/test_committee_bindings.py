"""What the proof of a committee's sums rests on: fresh secrets, each bound to one roster and use.

A client that draws or binds less would still send exact sums; so each is looked at by itself.
"""

from dataclasses import replace

import numpy as np
import pytest
from committee_sums import client, ring_of, terms
from lanes import every_case
from masked_sums import codec

from privfed.secure.committee import client as committee_client
from privfed.secure.committee.channel import simulated_keys
from privfed.secure.committee.dealing import deal_secrets, member_numbers
from privfed.secure.committee.key_book import (
    KeyCard,
    mask_key,
    pair_seed,
    run_secret,
    sealing_key,
    shares_context,
)
from privfed.secure.committee.messages import SEALED, Ballots, MemberInbox, MemberVote, vote_text
from privfed.secure.frames import BadMessage
from privfed.secure.identities import client_identity
from privfed.secure.limits import Limits
from privfed.secure.primitives import KeyPair

NAMES = (3, 8, 13, 18, 23, 28, 33, 38, 43)
A, B = b"A" * 32, b"B" * 32
LEAST = 7
"""The fewest survivors of the sums here: more than the committee asks for by itself."""


@pytest.fixture
def dealings(monkeypatch):
    """What clients deal: (roster, secrets, members' keys), in order."""
    dealings = []

    def dealing(agreed, dealer, secrets, keys, threshold):
        dealings.append((agreed, secrets, keys))
        return deal_secrets(agreed, dealer, secrets, keys, threshold)

    monkeypatch.setattr(committee_client, "deal_secrets", dealing)
    return dealings


def row():
    return np.zeros(codec().length, dtype=np.int64)


def called(me, of, ring=None):
    """A client that has answered the call to `of`, and its message."""
    who = client(me, of, row, ring)
    return who, who.handle(of.call(NAMES))


# --- secrets ---


def test_every_secret_and_key_is_drawn_for_one_exchange(dealings):
    """With a mask or a pair's seed used twice, what one sum opens is under the other."""
    first = terms(NAMES)
    ring = ring_of(3, first)
    for of in (first, replace(first, exchange=1)):
        called(3, of, ring)
    (agreed, mine, keys), (later, theirs, more) = dealings
    assert agreed != later
    assert len({*mine, *theirs}) == 2 * len(NAMES)
    assert len({*keys, *more}) == len(keys) + len(more) > 2


def test_a_member_draws_another_number_for_each_secret():
    """With one number, a share of a mask's seed that is opened would tell those of all pairs."""
    for key in (A, B):
        assert len(set(member_numbers(key, len(NAMES)))) == len(NAMES)
    assert not {*member_numbers(A, 9)} & {*member_numbers(B, 9)}


# --- bindings ---


@every_case(
    "derived",
    [
        lambda agreed: run_secret(agreed, b"s" * 32, 3, 8),
        lambda agreed: pair_seed(agreed, b"s" * 32, 3, 8),
        lambda agreed: mask_key(agreed, b"s" * 32),
        lambda agreed: sealing_key(agreed, b"s" * 32, 3, 8),
        lambda agreed: shares_context(agreed, 3, 8),
        lambda agreed: vote_text(agreed, (3, 8)),
    ],
    ids=["secret of a run", "pair seed", "mask key", "sealing key", "sealed text", "vote"],
)
def test_what_is_derived_or_signed_is_of_one_roster(derived):
    assert derived(A) != derived(B)


def test_what_is_derived_is_of_one_pair_use_and_way():
    assert pair_seed(A, B, 3, 8) == pair_seed(A, B, 8, 3)
    assert run_secret(A, B, 3, 8) == run_secret(A, B, 8, 3)
    uses = [
        run_secret(A, B, 3, 8),
        run_secret(A, B, 3, 13),
        pair_seed(A, B, 3, 8),
        pair_seed(A, B, 3, 13),
        mask_key(A, B),
        sealing_key(A, B, 3, 8),
        sealing_key(A, B, 8, 3),
        sealing_key(A, B, 3, 13),
    ]
    assert len(set(uses)) == len(uses)
    assert shares_context(A, 3, 8) != shares_context(A, 8, 3)


# --- what a member checks ---


@pytest.fixture
def member():
    """A member that has answered a call, and the terms of it."""
    of = terms(NAMES, limits=Limits(50, LEAST))
    members = of.committee(NAMES)[1]
    return called(members[0], of)[0], of, members


def texts(clients):
    return tuple((name, bytes(SEALED)) for name in clients)


@pytest.mark.parametrize(
    "survivors, reason",
    [
        ((*NAMES[:-1], 44), "wrong survivors"),
        ((3, 3, *NAMES[1:]), "wrong survivors"),
        (NAMES[::-1], "wrong survivors"),
        (NAMES[: LEAST - 1], "too few"),
    ],
    ids=["an outsider", "twice", "out of order", "fewer than the run asks for"],
)
def test_a_member_votes_for_enough_of_its_roster_alone(member, survivors, reason):
    who, of, _ = member
    with pytest.raises(BadMessage) as refused:
        who.handle(MemberInbox(of.call(NAMES).context, texts(survivors)))
    assert refused.value.fault == reason


def test_who_is_no_member_votes_for_nothing():
    of = terms(NAMES, limits=Limits(50, LEAST))
    outside = next(name for name in NAMES if name not in of.committee(NAMES)[1])
    who, _ = called(outside, of)
    with pytest.raises(BadMessage) as refused:
        who.handle(MemberInbox(of.call(NAMES).context, texts(NAMES)))
    assert refused.value.fault == "wrong member"


def voted(member, agreed=None, survivors=NAMES, voters=None):
    """What a member answers to the votes of `voters` (members unless named)."""
    who, of, members = member
    context = of.call(NAMES).context
    who.handle(MemberInbox(context, texts(NAMES)))
    text = vote_text(agreed or context, survivors)
    names = members if voters is None else voters(members)
    votes = tuple(MemberVote(name, client_identity(name).sign(text)) for name in names)
    return who.handle(Ballots(context, votes))


def test_votes_of_members_on_its_survivors_open(member):
    voted(member)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"agreed": A}, "inconsistent"),
        ({"survivors": NAMES[:-1]}, "inconsistent"),
        ({"voters": lambda members: NAMES}, "wrong voters"),
        ({"voters": lambda members: (*members, members[0])}, "wrong voters"),
        ({"voters": lambda members: members[:3]}, "too few"),
    ],
    ids=["another roster", "other survivors", "who are no members", "twice", "a vote too few"],
)
def test_other_votes_open_nothing(member, changes, reason):
    with pytest.raises(BadMessage) as refused:
        voted(member, **changes)
    assert refused.value.fault == reason


# --- keys of the run ---


def test_a_cohort_beyond_the_capacity_is_refused():
    with pytest.raises(BadMessage, match="more clients than 8"):
        called(3, terms(NAMES, limits=Limits(8)))


def test_keys_of_another_book_are_refused():
    of = terms(NAMES)
    who = client(3, of, row, simulated_keys(NAMES, of.book.run).rings[3])
    with pytest.raises(BadMessage) as refused:
        who.handle(of.call(NAMES))
    assert refused.value.fault == "wrong key book"


def test_a_card_of_a_client_that_nobody_knows_is_refused():
    book = simulated_keys(NAMES).book
    card = KeyCard(book.run, 99, KeyPair(A).public, B).signed(client_identity(99))
    with pytest.raises(BadMessage) as refused:
        replace(book, cards={**book.cards, 99: card}).check()
    assert refused.value.fault == "unknown client"


@pytest.mark.parametrize(
    "public, nonce",
    [(KeyPair(A).public, B[:-1]), (KeyPair(A).public + b"n", B[1:])],
    ids=["nonce", "both"],
)
def test_a_card_with_a_key_or_a_nonce_of_another_length_is_refused(public, nonce):
    """Else bytes of one could be taken for the other's under one hash."""
    book = simulated_keys(NAMES).book
    card = KeyCard(book.run, 8, public, nonce).signed(client_identity(8))
    with pytest.raises(BadMessage, match="the wrong length"):
        replace(book, cards={**book.cards, 8: card}).check()


def test_a_card_with_which_nobody_could_agree_names_its_client():
    """Else one client would stop every ring of the run, unnamed."""
    book = simulated_keys(NAMES).book
    card = KeyCard(book.run, 8, bytes(32), B).signed(client_identity(8))
    with pytest.raises(BadMessage, match="card of client 8"):
        replace(book, cards={**book.cards, 8: card}).check()
