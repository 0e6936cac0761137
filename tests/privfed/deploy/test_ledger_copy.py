"""A site's copy of the coordinator's ledger: it grows, and no line of it ever changes."""

import os

import pytest

from accounting import durable
from accounting.errors import LedgerBroken
from accounting.events import Event
from accounting.ledger import Ledger
from accounting.noises import Skellam
from accounting.releases import PoissonSampled
from privfed.deploy.files.run_state import LedgerCopy
from privfed.deploy.site.policy import Code, Declined

EVENT = Event(PoissonSampled(0.1, Skellam(4e6, 2000.0, 16000.0)), "poisson", slack=1e-12)
START = bytes(32)


def lines_of(path, rounds=3, config="c" * 64):
    """The lines of a coordinator's ledger, and the hash of each."""
    ledger = Ledger.create(path, {"config": config})
    for round in range(1, rounds + 1):
        ledger.charge(round, EVENT)
    heads = [bytes.fromhex(head.hash) for head in ledger.trail()]
    return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]], heads


@pytest.fixture
def lines(tmp_path):
    return lines_of(tmp_path / "ledger.jsonl")


@pytest.fixture
def copy(tmp_path, lines):
    """A copy of the first three lines."""
    copy = LedgerCopy(tmp_path / "state" / "copy.jsonl")
    copy.extend(START, b"".join(lines[0][:3]))
    return copy


def refused(copy, since, data):
    before = copy.path.read_bytes(), copy.head
    with pytest.raises(Declined) as declined:
        copy.extend(since, data)
    assert declined.value.code == Code.LEDGER
    assert (copy.path.read_bytes(), copy.head) == before


def test_lines_that_follow_are_added_and_durable(copy, lines, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(copy.path.read_bytes()))
    texts, heads = lines
    copy.extend(heads[2], texts[3])
    assert b"".join(texts[:4]) in synced
    copy.extend(heads[3], texts[4])
    assert copy.head == heads[-1] == LedgerCopy(copy.path).head
    assert [charge.round for charge in copy.ledger.charges] == [1, 2, 3]
    assert LedgerCopy(copy.path).ledger.charged(3).event == EVENT


def test_nobody_else_may_read_it(copy, lines):
    before = os.umask(0o022)
    try:
        texts, heads = lines
        copy.extend(heads[2], texts[3])
        assert copy.path.stat().st_mode & 0o777 == 0o600
        assert copy.path.parent.stat().st_mode & 0o777 == 0o700
        with copy.path.open("ab") as file:
            file.write(texts[4][:20])
        LedgerCopy(copy.path)
        assert copy.path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("since", range(4))
def test_the_same_lines_may_come_again_with_or_without_new_ones(copy, lines, since):
    texts, heads = lines
    heads = [START, *heads]
    before = copy.path.read_bytes()
    for until in range(since, 4):
        copy.extend(heads[since], b"".join(texts[since:until]))
        assert copy.path.read_bytes() == before
    copy.extend(heads[since], b"".join(texts[since:]))
    assert copy.head == heads[-1]
    assert copy.path.read_bytes() == b"".join(texts)


def test_a_fork_is_refused_wherever_it_begins(copy, lines, tmp_path):
    texts, heads = lines
    other, other_heads = lines_of(tmp_path / "other.jsonl", config="d" * 64)
    refused(copy, START, b"".join(other))
    refused(copy, other_heads[0], other[1])
    fork = Ledger.create(tmp_path / "fork.jsonl", {"config": "c" * 64})
    fork.charge(3, EVENT)  # the copy has round 1 there
    forked = [line + b"\n" for line in fork.path.read_bytes().split(b"\n")[:-1]]
    assert forked[:2] == texts[:2]
    refused(copy, START, b"".join(forked))
    refused(copy, heads[1], forked[2])
    refused(copy, heads[1], forked[2] + texts[3])


def test_a_cut_ledger_is_none_that_goes_on(copy, lines, tmp_path):
    """Its lines were seen, and one after them is another than was seen there."""
    texts, heads = lines
    cut = Ledger.create(tmp_path / "cut.jsonl", {"config": "c" * 64})
    copy.extend(START, cut.path.read_bytes())  # it was seen: nothing is added
    cut.charge(2, EVENT)
    refused(copy, START, cut.path.read_bytes())
    refused(copy, heads[0], cut.path.read_bytes().removeprefix(texts[0]))


def test_lines_after_one_that_was_never_seen_are_refused(copy, lines):
    texts, heads = lines
    for since in (heads[3], b"x" * 32):
        refused(copy, since, texts[4])
        refused(copy, since, b"")


def test_lines_that_are_cut_edited_or_out_of_order_are_refused(copy, lines):
    texts, heads = lines
    for data in (
        texts[3][:-1],
        texts[3] + texts[4][:-5],
        texts[4],
        texts[4] + texts[3],
        texts[3] + texts[3],
        texts[3].replace(b'"round":2', b'"round":9'),
        b"\n",
        b"{}\n",
    ):
        refused(copy, heads[2], data)


def test_a_torn_last_line_is_cut_off(copy, lines):
    texts, heads = lines
    copy.path.write_bytes(b"".join(texts[:3]) + texts[3][:-1])
    again = LedgerCopy(copy.path)
    assert again.head == heads[2]
    assert copy.path.read_bytes() == b"".join(texts[:3])
    again.extend(heads[2], texts[3] + texts[4])
    assert LedgerCopy(copy.path).head == heads[-1]


def test_an_edited_copy_is_declined(copy):
    copy.path.write_bytes(copy.path.read_bytes().replace(b'"round":1', b'"round":7'))
    with pytest.raises(Declined) as declined:
        LedgerCopy(copy.path)
    assert declined.value.code == Code.LEDGER


def test_after_an_append_that_failed_nothing_is_added_until_a_restart(copy, lines, monkeypatch):
    texts, heads = lines

    def half(path, line):
        with path.open("ab") as file:
            file.write(line[: len(line) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(durable, "append", half)
        with pytest.raises(OSError):
            copy.extend(heads[2], texts[3])
    assert copy.head == heads[2]
    with pytest.raises(LedgerBroken):
        copy.extend(heads[2], texts[3])
    copy.extend(heads[1], texts[2])  # what was seen may still come again
    again = LedgerCopy(copy.path)
    assert again.head == heads[2]
    again.extend(heads[2], texts[3])
    assert LedgerCopy(copy.path).head == heads[3]
