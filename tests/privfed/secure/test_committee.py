"""Sums that a committee opens: exact whoever drops out, and refused by name."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from committee_sums import (
    POLICY,
    Changing,
    channel,
    client,
    garbled,
    members,
    named,
    spoiled,
    terms,
)
from lanes import every_case
from masked_sums import codec, rows, sent

from privfed.core.errors import Refused
from privfed.privacy.noise.shares import Layers
from privfed.secure.channel import Wire
from privfed.secure.committee.channel import run_of
from privfed.secure.committee.dealing import (
    DIGEST,
    deal_secrets,
    member_numbers,
    member_share,
    proof,
    proved_root,
    tree,
)
from privfed.secure.committee.messages import (
    Ballot,
    Ballots,
    Call,
    Contribution,
    Disclosure,
    MemberInbox,
    message_bytes,
    read_message,
)
from privfed.secure.committee.policy import CommitteePolicy
from privfed.secure.committee.protocol import CommitteeSums
from privfed.secure.frames import BadMessage
from privfed.secure.identities import client_identity
from privfed.secure.limits import Leaves, Limits
from privfed.secure.masked.shamir import reconstruct
from privfed.secure.summation import Aborted

NAMES = (3, 8, 13, 18, 23, 28, 33, 38, 43)
"""The clients of a session of nine."""


def summed(wire=None, leaves=(), **keys):
    ready, of = channel(leaves, wire=wire, **keys)
    sent_rows = rows(codec(), len(of.clients))
    expected = sent(ready, of, sent_rows)
    return ready, expected


# --- sums ---


def test_each_client_sends_one_message_and_only_the_committee_more():
    wire = Changing()
    ready, expected = summed(wire)
    total, survivors = ready.total()
    assert np.array_equal(total, expected)
    assert survivors == 9
    inside = set(members(ready))
    assert len(inside) == 6
    assert wire.count == {who: 3 if who in inside else 1 for who in NAMES}


@every_case("seed", range(25))
def test_a_sum_is_exact_or_aborts_where_its_arithmetic_does(seed):
    rng = np.random.default_rng(seed)
    leaves = rng.choice(4, 9, p=[0.8, 0.05, 0.05, 0.1])
    ready, expected = summed(leaves=leaves)
    _, of = channel(leaves)
    part = CommitteeSums(threshold=0.6, colluders=0.15, committee=5)
    try:
        part.abort_where_lost(of, Limits(50))
    except Aborted:
        with pytest.raises(Aborted, match="too few"):
            ready.total()
    else:
        total, survivors = ready.total()
        assert np.array_equal(total, expected)
        assert survivors == of.sending


def test_both_sides_of_the_threshold_occur_in_those_patterns():
    outcomes = Counter()
    for seed in range(25):
        leaves = np.random.default_rng(seed).choice(4, 9, p=[0.8, 0.05, 0.05, 0.1])
        try:
            CommitteeSums(threshold=0.6, colluders=0.15, committee=5).abort_where_lost(
                channel(leaves)[1], Limits(50)
            )
            outcomes["sums"] += bool(leaves.any())
        except Aborted:
            outcomes["aborts"] += 1
    assert min(outcomes["sums"], outcomes["aborts"]) > 2


@every_case("clients", [3, 9, 16])
def test_the_estimate_of_bytes_is_that_of_messages(clients):
    wire = Changing()
    ready, of = channel(clients=clients, policy=CommitteePolicy(0.75, 0.1, 6, clients), wire=wire)
    sent(ready, of, rows(codec(), clients))
    ready.total()
    part = CommitteeSums(committee=6)
    inside = len(members(ready)) / clients
    more = inside * (wire.sizes["Ballot"] + wire.sizes["Disclosure"])
    assert part.upload(codec(), clients) == pytest.approx(
        wire.sizes["Contribution"] + more, rel=0.05
    )


def test_keys_are_agreed_once_and_masks_are_new_in_each_round():
    first, second = (channel(round=round)[0] for round in (1, 2))
    texts = []
    for ready in (first, second):
        ready.send(3, np.zeros(5, dtype=np.int64))
        texts.append(ready.server._dealings[3].dealt)
    assert texts[0].secrets != texts[1].secrets


# --- who spoils a sum ---


def test_a_wrong_share_is_left_out_and_its_member_named():
    ready, _ = channel()
    byzantine_client = members(ready)[0]
    ready, expected = summed(Changing(Disclosure, spoiled, {byzantine_client}))
    assert np.array_equal(ready.total()[0], expected)
    assert ready.faults == [
        f"wrong shares: client {byzantine_client} opened shares that their sender did not commit to"
    ]
    assert named(ready) == {byzantine_client: "wrong share"}


def test_more_wrong_shares_than_may_be_missing_abort_and_all_are_named():
    ready, _ = channel()
    byzantine = set(members(ready)[:3])
    ready, _ = summed(Changing(Disclosure, spoiled, byzantine))
    with pytest.raises(Aborted, match=r"too few members.*did not commit to"):
        ready.total()
    assert named(ready) == dict.fromkeys(byzantine, "wrong share")


@every_case("count", range(7))
def test_a_client_that_deals_nothing_to_more_than_may_lie_is_named(count):
    """And stops the sum only where fewer than the threshold can open its shares."""
    ready, expected = summed(Changing(Contribution, garbled(count), {8}))
    if count > 2:
        with pytest.raises(Aborted, match="client 8 distributed shares that members"):
            ready.total()
    else:
        assert np.array_equal(ready.total()[0], expected)
    assert named(ready) == ({8: "garbled shares"} if count > 1 else {})


@pytest.mark.parametrize("gone", [1, 2])
def test_threshold_and_liars_who_stay_finish_or_name_who_garbles(gone):
    """Of 6 members 4 open, 1 may lie: with 5 who stay one garbled key stops nobody."""
    ready, of = channel()
    leaves = np.isin(of.clients, members(ready)[-gone:]) * int(Leaves.BEFORE_UNMASKING)
    ready, expected = summed(Changing(Contribution, garbled(1), {8}), leaves=leaves)
    if gone == 1:
        assert np.array_equal(ready.total()[0], expected)
    else:
        with pytest.raises(Aborted, match="too few members could open the shares of client 8"):
            ready.total()
    assert not ready.server.culprits


def test_a_client_whose_shares_give_another_secret_is_named():
    def change(message):
        corrections = bytes(len(message.dealt.corrections))
        return replace(message, dealt=replace(message.dealt, corrections=corrections))

    ready, _ = summed(Changing(Contribution, change, {8}))
    with pytest.raises(Aborted, match="wrong dealing: client 8 distributed shares of other seeds"):
        ready.total()
    assert named(ready) == {8: "wrong dealing"}


def test_members_who_say_that_honest_shares_are_bad_stop_nobody():
    ready, _ = channel()
    byzantine_client = members(ready)[-1]

    def change(ballot):
        return replace(ballot, roots=(bytes(DIGEST),) * len(ballot.roots))

    ready, expected = summed(Changing(Ballot, change, {byzantine_client}))
    assert np.array_equal(ready.total()[0], expected)
    assert not ready.server.culprits


# --- aborts by chance ---


@pytest.mark.parametrize("dropout", [0.15, 0.3])
def test_the_chance_of_an_abort_is_bounded_and_not_by_much(dropout):
    part, limits = CommitteeSums(committee=6, threshold=0.7), Limits(50, size=20)
    _, of = channel(clients=20)
    rng, aborts, turns = np.random.default_rng(3), 0, 1000
    for _ in range(turns):
        gone = rng.random(20) < dropout
        leaves = np.where(gone, rng.integers(1, 4, 20), 0)
        try:
            part.abort_where_lost(replace(of, leaves=leaves), limits)
        except Aborted:
            aborts += 1
    bound, rate = part.stops(20, dropout, limits), aborts / turns
    assert rate - 0.04 < bound < 1.6 * rate + 0.04


# --- refusals of clients ---

REFUSED = {
    "wrong round": lambda call: replace(call, round=2),
    "wrong exchange": lambda call: replace(call, exchange=1),
    "wrong model_hash": lambda call: replace(call, model_hash=bytes(32)),
    "wrong bits": lambda call: replace(call, bits=16),
    "wrong length": lambda call: replace(call, length=6),
    "wrong agreement": lambda call: replace(call, agreement=bytes(32)),
    "wrong roster": lambda call: replace(call, clients=call.clients[::-1]),
}


@every_case("fault", REFUSED)
def test_a_call_to_another_sum_is_refused_and_no_row_asked_for(fault):
    mine = client(3, terms(NAMES), lambda: pytest.fail("the row was asked for"))
    with pytest.raises(BadMessage, match=fault):
        mine.handle(REFUSED[fault](terms(NAMES).call(NAMES)))
    with pytest.raises(BadMessage, match="wrong type"):
        mine.handle(terms(NAMES).call(NAMES))


@every_case(
    ("clients", "reason"),
    [
        ((3, 8, 8, 13), "duplicate"),
        ((3, 8, 13, 999), "unknown"),
        ((8, 13, 18, 23), "not contain this client"),
        ((3, 8), "too few clients"),
    ],
    ids=["twice", "unknown", "without it", "few"],
)
def test_a_roster_that_keeps_no_promise_is_refused(clients, reason):
    of = terms(NAMES, replace(POLICY, size=9))
    with pytest.raises(Aborted, match=reason):
        client(3, of, list).handle(of.call(clients))


def below(message, name, change):
    return replace(message, **{name: change(getattr(message, name))})


MEMBERS = {
    "wrong survivors": (MemberInbox, "sealed", lambda texts: texts[::-1]),
    "too few": (MemberInbox, "sealed", lambda texts: texts[:5]),
    "wrong session": (MemberInbox, "context", lambda context: bytes(32)),
    "wrong voters": (Ballots, "votes", lambda votes: votes[:1] * 4),
    "the votes are fewer": (Ballots, "votes", lambda votes: votes[:3]),
    "inconsistent": (
        Ballots,
        "votes",
        lambda votes: (*votes[:3], replace(votes[3], signature=bytes(64))),
    ),
}


@every_case("fault", MEMBERS)
def test_a_member_refuses_other_survivors_and_votes(fault):
    kind, name, change = MEMBERS[fault]
    wire = Changing(kind, lambda message: below(message, name, change), set(NAMES), upward=False)
    ready, _ = summed(wire)
    with pytest.raises(Aborted, match=f"too few members.*{fault}"):
        ready.total()


def test_a_member_that_has_voted_can_unseal_nothing_more():
    ready, of = channel()
    sent(ready, of, rows(codec(), len(of.clients)))
    assert all(ready.clients[who]._openers for who in members(ready))
    ready._delivery.ask(ready.server.proceed(), Leaves.BEFORE_UNMASKING)
    assert not any(ready.clients[who]._openers for who in members(ready))


# --- refusals of the server ---

SENT = {
    "wrong shares": lambda message: replace(message, sealed=message.sealed[1:]),
    "wrong length": lambda message: replace(message, words=message.words + b"\0"),
    "wrong session": lambda message: replace(message, context=bytes(32)),
    "wrong sender": lambda message: replace(message, sender=13),
    "wrong signature": lambda message: message_bytes(
        replace(message, words=bytes(len(message.words)))
    ),
    "wrong format": lambda message: b"XX" + message_bytes(message)[2:],
}


@every_case("fault", SENT)
def test_a_contribution_that_is_none_counts_as_dropped(fault):
    ready, of = channel(wire=Changing(Contribution, SENT[fault], {8}))
    sent_rows = rows(codec(), 9)
    expected = sent(ready, of, sent_rows) - sent_rows[1]
    total, survivors = ready.total()
    assert ready.faults[0].startswith(fault)
    assert survivors == 8
    assert np.array_equal(total, expected)


def spoiled_at_random(data):
    """Some hundred such bytes with one changed, or cut off somewhere."""
    rng = np.random.default_rng(len(data))
    for at in rng.integers(0, len(data), 100).tolist():
        yield data[:at] + bytes([data[at] ^ int(rng.integers(1, 256))]) + data[at + 1 :]
        yield data[:at]


def test_every_message_is_what_its_bytes_are_and_no_more_or_less():
    messages = []

    class Listening(Wire):
        def carry(self, client, data, upward):
            messages.append(data)
            return data

    ready, _ = summed(Listening())
    ready.total()
    kinds = {type(read_message(data)): data for data in messages}
    assert kinds.keys() == {Call, Contribution, MemberInbox, Ballot, Ballots, Disclosure}
    for kind, data in kinds.items():
        assert message_bytes(read_message(data)) == data
        for changed in (data[:-1], data + b"\0"):
            if kind is Contribution:  # whose row is all that is left
                continue
            with pytest.raises(BadMessage):
                read_message(changed)
        for changed in spoiled_at_random(data):
            with suppress(BadMessage):
                assert message_bytes(read_message(changed)) == changed


@every_case("spoil", ["run", "public", "nonce", "short", "signature", "alike"])
def test_a_book_with_a_card_that_is_no_clients_is_refused(spoil):
    book = run_of(NAMES, 1, 0).book
    card = book.cards[8]
    changed = {
        "run": lambda: replace(card, run=bytes(32)).signed(client_identity(8)),
        "public": lambda: replace(card, public=bytes(32)),
        "nonce": lambda: replace(card, nonce=bytes(32)),
        "short": lambda: replace(card, nonce=b"").signed(client_identity(8)),
        "signature": lambda: replace(card, signature=bytes(64)),
        "alike": lambda: replace(card, public=book.cards[3].public).signed(client_identity(8)),
    }[spoil]()
    book.check()
    with pytest.raises(BadMessage):
        replace(book, cards={**book.cards, 8: changed}).check()


# --- dealing ---


def test_as_many_shares_as_the_threshold_give_a_secret_back_and_fewer_fit_any():
    keys = tuple(bytes([at]) * 32 for at in range(7))
    secrets = (b"a" * 32, b"b" * 32)
    dealt = deal_secrets(b"A" * 32, 3, secrets, keys, 4)
    for number, secret in enumerate(secrets):
        shares = {
            place: member_share(
                member_numbers(key, 2)[number], dealt.corrections, number, place, (4, 7)
            )
            for place, key in enumerate(keys, start=1)
        }
        for chosen in ([1, 2, 3, 4], [4, 5, 6, 7], [1, 3, 5, 7]):
            assert reconstruct({place: shares[place] for place in chosen}, 4) == secret
    other = deal_secrets(b"A" * 32, 3, (b"c" * 32, b"b" * 32), keys, 4)
    assert dealt.roots == other.roots  # no member's numbers tell the secret
    assert dealt.corrections != other.corrections


@every_case("count", [1, 2, 5, 9])
def test_a_tree_opens_its_leaves_and_no_others(count):
    leaves = [bytes([at]) * DIGEST for at in range(count)]
    levels = tree(leaves)
    for numbers in ((0,), range(count), range(0, count, 2)):
        opened = {number: leaves[number] for number in numbers}
        right = proof(levels, numbers)
        assert proved_root(opened, right, count) == levels[-1][0]
        assert proved_root(opened, right + bytes(DIGEST), count) is None
        wrong = opened | {0: b"x" * DIGEST}
        assert proved_root(wrong, right, count) != levels[-1][0]


# --- policy ---


@every_case("colluders", [0.0, 0.1, 0.3])
@every_case("threshold", [0.7, 0.9])
def test_of_every_cohort_the_committee_keeps_what_the_theorem_asks_for(threshold, colluders):
    policy = CommitteePolicy(threshold, colluders, 6, 40)
    taken = 0
    for clients in range(2, 250):
        try:
            committee = policy.committee(clients)
        except Aborted:
            assert clients < policy.corrupt(clients) + 2
            continue
        corrupt, taken = policy.corrupt(clients), taken + 1
        assert corrupt >= int(colluders * 40)
        assert 2 * committee.threshold > committee.members + corrupt
        assert corrupt + 2 <= committee.threshold <= committee.members <= clients
        assert committee.survivors >= corrupt + 2
        assert committee.survivors >= threshold * clients - 1e-6
    assert taken > 200


def test_sites_layers_and_thresholds_without_a_proof_are_refused():
    with pytest.raises(Refused, match="sites"):
        CommitteeSums().over(Limits(5, sites=5))
    with pytest.raises(Refused, match=r"threshold is 0\.6"):
        CommitteeSums(threshold=0.6, colluders=0.2).over(Limits(20))
    with pytest.raises(Refused, match="layers"):
        CommitteeSums().channel(channel()[1], codec(), Limits(50), Layers(1.0, 0.3))
