"""What a client keeps over a run: new for each exchange, stored first, and of one book alone."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from committee_sums import POLICY, client, terms
from lanes import every_case
from masked_sums import codec

from privfed.secure.committee.channel import SimulatedRun, simulated_keys
from privfed.secure.committee.key_book import KeyBook, KeyCard
from privfed.secure.committee.keyring import Keyring
from privfed.secure.committee.terms import RoundTerms
from privfed.secure.frames import BadMessage
from privfed.secure.identities import client_directory, client_identity
from privfed.secure.limits import Limits
from privfed.secure.masked.client_state import BadState
from privfed.secure.primitives import KeyPair
from privfed.secure.summation import Aborted

NAMES = (3, 8, 13, 18, 23, 28, 33, 38, 43)
NAME = b"a run that is named again".ljust(32)
FROZEN = "b827c162987aea84"


@pytest.fixture(scope="module")
def run():
    return simulated_keys(NAMES)


def secrets_of(ring):
    """All 32 bytes that lie anywhere in its form on disk."""
    data = ring.to_bytes()
    return {data[at : at + 32] for at in range(len(data) - 31)}


# --- secrets of exchanges ---


def test_two_rings_agree_in_each_exchange_and_keep_nothing_of_those_they_took(run):
    """Also where one of them was not called for a while, or for some exchanges of a round."""
    third, eighth = run.ring(3), run.ring(8)
    for skipped in ((0, 1), (1, 0), (2, 3)):
        third.take(*skipped)
    used = [third.take(*exchange) for exchange in ((2, 4), (5, 0), (5, 1))]
    for exchange, theirs in zip(((2, 4), (5, 0), (5, 1)), used, strict=True):
        assert eighth.take(*exchange)[3] == theirs[8]
        for ring in (third, eighth):
            assert not {*theirs.values()} & secrets_of(ring)
    assert len({secret for each in used for secret in each.values()}) == 3 * len(NAMES)
    assert not any(isinstance(value, KeyPair) for value in vars(third).values())
    for past in ((5, 1), (5, 0), (4, 9)):
        with pytest.raises(BadMessage, match="answered already"):
            third.take(*past)
    assert third.take(5, 2) != used[-1]


def fixed(nonce):
    """A run whose name and key pairs are always the same, with another nonce on each card."""
    pairs = {who: KeyPair(bytes([who]) * 32) for who in NAMES}
    cards = {
        who: KeyCard(NAME, who, pair.public, bytes([who]) + nonce).signed(client_identity(who))
        for who, pair in pairs.items()
    }
    book = KeyBook(NAME, client_directory(NAMES), cards)
    book.check()
    return SimulatedRun(book, pairs)


def test_frozen_secret_of_an_exchange():
    """Another implementation has to meet it; a change of it is a change of the protocol."""
    assert fixed(b"n" * 31).ring(3).take(2, 1)[8].hex()[:16] == FROZEN


# --- runs with one name ---


def test_runs_with_one_name_have_unrelated_masks():
    """Even where all key pairs are the same: each card has a nonce, which all is bound to."""
    runs = [fixed(nonce * 31) for nonce in (b"a", b"b")]
    assert not {*runs[0].ring(3).take(1, 0).values()} & {*runs[1].ring(3).take(1, 0).values()}
    calls = [sum_of(run).call(NAMES) for run in runs]
    assert calls[0].context != calls[1].context


def sum_of(run):
    return RoundTerms(1, 0, b"h" * 32, codec(), POLICY, Limits(50), run.book)


def test_an_old_card_is_no_key_of_a_run_with_the_same_name():
    """A server that names a run again shows others a client's old card; the client is in none."""
    old, new = simulated_keys(NAMES, NAME), simulated_keys(NAMES, NAME)
    mixed = replace(new.book, cards={**new.book.cards, 8: old.book.cards[8]})
    mixed.check()
    with pytest.raises(BadMessage, match="wrong card"):
        Keyring(new.pairs[8], new.book.cards[8], mixed)
    with pytest.raises(BadMessage, match="wrong card"):
        Keyring(new.pairs[8], old.book.cards[8], mixed)
    others = SimulatedRun(mixed, new.pairs)
    assert others.ring(3).take(1, 0)[8] != old.ring(8).take(1, 0)[3]


# --- a client that is killed ---


class Killed(BaseException):
    """The process is gone."""


class Disk:
    """What is stored; the process is killed at the commit `dies` (from 0), `when` it is."""

    def __init__(self, dies=None, when=""):
        self.dies, self.when, self.commits, self.data = dies, when, 0, b""

    def store(self, data):
        self.commits += 1
        doomed = self.commits - 1 == self.dies
        if doomed and self.when == "before":
            raise Killed
        self.data = data
        if doomed:
            raise Killed


def lives(run, dies, when):
    """What a client sent over six exchanges, and for which it was asked for its row."""
    disk, sent, rows = Disk(dies, when), [], []
    card = run.book.cards[3]
    try:
        mine = Keyring(run.pairs[3], card, run.book, disk.store)
    except Killed:
        return disk, sent, rows
    for round in (1, 2, 4):
        for exchange in (0, 1):
            of = replace(sum_of(run), round=round, exchange=exchange)
            for _ in range(3):  # the server asks again, whatever it heard
                try:
                    party = client(3, of, lambda at=(round, exchange): asked(rows, at), mine)
                    sent.append((round, exchange, party.handle(of.call(NAMES))))
                except Killed:
                    mine = Keyring.from_bytes(disk.data, 3, run.book, disk.store)
                except Aborted:
                    pass
    return disk, sent, rows


def asked(rows, at):
    rows.append(at)
    return np.zeros(codec().length, dtype=np.int64)


EXCHANGES = [(round, exchange) for round in (1, 2, 4) for exchange in (0, 1)]


@every_case("when", ["before", "after"])
@every_case("dies", [1, 2, 5])
def test_a_client_that_is_killed_sends_once_in_an_exchange_or_not_at_all(run, dies, when):
    """Before its commit it has sent nothing, and may; after it that exchange is left."""
    _, sent, rows = lives(run, dies, when)
    lost = [EXCHANGES[dies - 1]] if when == "after" else []
    expected = [at for at in EXCHANGES if at not in lost]
    assert [(round, exchange) for round, exchange, _ in sent] == expected == rows
    assert len({letter.dealt.secrets for *_, letter in sent}) == len(sent)


class Late(Keyring):
    """It stores an exchange when the next one is taken."""

    def take(self, round, exchange):
        store, self._store = self._store, lambda data: None
        before = self.to_bytes()
        taken = super().take(round, exchange)
        self._store = store
        store(before)
        return taken


def test_a_client_that_stores_too_late_would_send_twice(run):
    """From what it stored it would take the same secrets again."""
    disk = Disk()
    first = Late(run.pairs[3], run.book.cards[3], run.book, disk.store)
    taken = first.take(1, 0)
    assert Late.from_bytes(disk.data, 3, run.book, disk.store).take(1, 0) == taken
    right = run.ring(3)
    right._store = disk.store
    right.take(1, 0)
    with pytest.raises(BadMessage, match="answered already"):
        Keyring.from_bytes(disk.data, 3, run.book, disk.store).take(1, 0)


def test_who_loses_its_keys_before_they_are_stored_has_none(run):
    disk, sent, _ = lives(run, 0, "before")
    assert (disk.data, sent) == (b"", [])
    with pytest.raises(BadState, match="damaged"):
        Keyring.from_bytes(disk.data, 3, run.book, disk.store)


def test_a_ring_of_others_or_spoiled_or_from_before_is_refused(run):
    ring = run.ring(3)
    ring.take(2, 0)
    early = ring.to_bytes()
    ring.take(2, 1)
    data, keep = ring.to_bytes(), lambda data: None
    again = Keyring.from_bytes(data, 3, run.book, keep, after=(2, 1))
    assert again.to_bytes() == data
    assert again.take(3, 0) == ring.take(3, 0)
    with pytest.raises(BadState, match="stale"):  # it still has the secrets of that exchange
        Keyring.from_bytes(early, 3, run.book, keep, after=(2, 1))
    for me, book in ((8, run.book), (3, simulated_keys(NAMES).book)):
        with pytest.raises(BadState, match="foreign"):
            Keyring.from_bytes(data, me, book, keep)
    other = data[:-32].replace(b"PFC1", b"PFC0")
    with pytest.raises(BadState, match="other format"):
        Keyring.from_bytes(other + hashlib.sha256(other).digest(), 3, run.book, keep)
    fewer = data[:-32] + b"\0"
    for spoiled in (data[:-1], data[:40], bytes([data[0] ^ 1]) + data[1:], sealed(fewer)):
        with pytest.raises(BadState, match="damaged"):
            Keyring.from_bytes(spoiled, 3, run.book, keep)


def sealed(data):
    return data + hashlib.sha256(data).digest()


def test_a_simulation_that_goes_back_is_another_run():
    first = terms(NAMES)
    client(3, first, lambda: np.zeros(5, dtype=np.int64)).handle(first.call(NAMES))
    assert terms(NAMES, round=2).book is first.book
    assert terms(NAMES).book is not first.book
