"""The ledger is durable, append-only, and shows every edit."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lanes import every_case

from accounting import chain
from accounting.errors import BudgetExceeded, LedgerBroken
from accounting.events import ZERO_OUT, Event
from accounting.guarantee import Gate, spent
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import PoissonSampled

EVENT = Event(PoissonSampled(0.1, Gaussian(1.0)), "poisson")
OTHER = Event(PoissonSampled(0.1, Gaussian(2.0)), "poisson")
TERMS = {"delta": 1e-5}


def written(path, rounds=5):
    ledger = Ledger.create(path, TERMS)
    for round in range(1, rounds + 1):
        ledger.charge(round, EVENT if round % 2 else OTHER)
    return ledger


def test_what_is_loaded_is_what_was_charged(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = written(path)
    again = Ledger.load(path)
    assert again.charges == ledger.charges
    assert again.spending == {EVENT: 3, OTHER: 2}
    assert again.spending_until(2) == {EVENT: 1, OTHER: 1}
    assert again.head() == ledger.head()
    assert again.terms == TERMS
    assert spent(again, 1e-5) == spent(ledger, 1e-5)


def test_the_counts_of_charges_cannot_be_lowered(tmp_path):
    ledger = written(tmp_path / "ledger.jsonl", rounds=5)
    with pytest.raises(TypeError):
        ledger.counts[EVENT] -= 1
    assert dict(ledger.counts) == dict(ledger.run_spending) == {EVENT: 3, OTHER: 2}


def test_a_charge_is_on_disk_before_it_returns(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, TERMS)
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(path.stat().st_size), real(fd))[1])
    ledger.charge(1, EVENT)
    assert synced[-1] == path.stat().st_size, "the charge was not synced after its last byte"


def test_each_distinct_event_is_defined_once(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, rounds=9)
    kinds = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert kinds.count("define") == 2
    assert kinds.count("charge") == 9


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


@every_case("line", range(7))
def test_a_line_cut_from_the_middle_is_noticed(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    written(path)
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[:line] + lines[line + 1 :]))
    with pytest.raises(LedgerBroken, match=f"line {line + 1}"):
        Ledger.load(path)


def test_reordered_lines_are_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path)
    lines = lines_of(path)
    lines[3], lines[5] = lines[5], lines[3]
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerBroken, match="line 4"):
        Ledger.load(path)


def test_an_end_cut_off_is_noticed_by_who_kept_the_head(tmp_path):
    path = tmp_path / "ledger.jsonl"
    head = written(path).head()
    path.write_bytes(b"".join(lines_of(path)[:-1]))
    cut = Ledger.load(path)
    assert not cut.holds(head)
    assert cut.holds(cut.head())


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_changed_byte_lowers_what_was_spent(tmp_path, data):
    """Any one-byte edit is refused, or (a destroyed last newline) counts no less."""
    path = tmp_path / "ledger.jsonl"
    path.unlink(missing_ok=True)
    before = written(path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255).filter(lambda b: b != content[place]))
    path.write_bytes(bytes(content))
    try:
        after = Ledger.load(path)
    except LedgerBroken:
        return
    assert len(after.charges) >= len(before.charges)


@every_case("keep", [1, 20, -1])
def test_a_torn_last_line_counts_as_the_dearest_event(tmp_path, keep):
    path = tmp_path / "ledger.jsonl"
    written(path, rounds=5)
    *whole, last = lines_of(path)
    torn = b"".join(whole) + last[:keep]
    path.write_bytes(torn)
    assert Ledger.load(path).spending == {EVENT: 3, OTHER: 2}
    assert path.read_bytes() == torn, "loading changes nothing"

    recovered = Ledger.recover(path)
    assert recovered.spending == {EVENT: 3, OTHER: 2}
    assert Ledger.load(path).head() == recovered.head()
    recovered.charge(6, EVENT)
    assert len(Ledger.load(path).charges) == 6


@every_case(
    "counted",
    [
        RandomAllocation(4, 1, Gaussian(9.0)),
        BufferedToeplitz((0.5,), (0.5,), 4, Gaussian(9.0)),
        Separated(4, Gaussian(9.0)),
    ],
    ids=["allocation", "buffers", "separated"],
)
def test_a_torn_line_counts_as_a_round_of_those_that_hang_together(tmp_path, counted):
    """Also where rounds beside them, as those that evaluate, are dearer: slots go on with it."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, TERMS)
    trains, evaluates = Event(counted, "s", ZERO_OUT), Event(Gaussian(0.5), "full", ZERO_OUT)
    for round in (1, 2, 3):
        ledger.charge(round, evaluates if round == 2 else trains)
    content = path.read_bytes()
    path.write_bytes(content + b'{"type"')
    assert Ledger.load(path).spending == {trains: 3, evaluates: 1}


def test_a_torn_charge_is_recovered_as_the_line_it_would_have_been(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, TERMS)
    ledger.charge(1, EVENT)
    ledger.charge(2, EVENT)
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    Ledger.recover(path)
    assert path.read_bytes() == content


def test_a_torn_first_line_has_charged_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger.create(path, TERMS)
    path.write_bytes(path.read_bytes()[:30])
    assert not Ledger.recover(path).opened


def test_a_newer_format_is_refused_by_name(tmp_path):
    path = tmp_path / "ledger.jsonl"
    line, _ = chain.sealed(chain.START, {"type": "open", "format": 2, "terms": {}})
    path.write_bytes(line)
    with pytest.raises(LedgerBroken, match="format 2"):
        Ledger.load(path)


@every_case(
    "body",
    [
        {"type": "charge", "round": 2, "event": 1},
        {"type": "charge", "round": 2, "event": -1},
        {"type": "charge", "round": "2", "event": 0},
        {"type": "charge", "round": 2.5, "event": 0},
        {"type": "charge", "round": 1, "event": 0},
        {"type": "open", "format": 1, "terms": {}},
        {"type": "define", "id": 7, "event": OTHER.to_json()},
        {"type": "define", "id": 0, "event": {"release": {"kind": "new"}}},
        {"type": "gift"},
        {"round": 3},
    ],
)
def test_a_well_chained_line_that_makes_no_sense_is_refused(tmp_path, body):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, TERMS)
    ledger.charge(1, EVENT)
    line, _ = chain.sealed(ledger.head().hex(), body)
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(LedgerBroken, match="line 4"):
        Ledger.load(path)


def test_a_ledger_is_never_begun_twice(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        Ledger.create(path, TERMS)
    assert path.read_bytes() == before


def test_after_a_failed_write_nothing_more_is_charged(tmp_path, monkeypatch):
    """Half of a line may be in the file: another one behind it would break the chain."""
    path = tmp_path / "ledger.jsonl"
    ledger = written(path, rounds=3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
        with pytest.raises(OSError, match="I/O"):
            ledger.charge(4, EVENT)
    with pytest.raises(LedgerBroken, match="resume"):
        ledger.charge(4, EVENT)
    assert len(Ledger.recover(path).charges) == 4


def test_a_charged_round_is_never_charged_again(tmp_path):
    ledger = written(tmp_path / "ledger.jsonl", rounds=3)
    for round in (3, 1):
        with pytest.raises(LedgerBroken, match="no round is sampled twice"):
            ledger.charge(round, EVENT)
    assert len(ledger.charges) == 3


def test_a_seeded_ledger_verifies_an_identical_charge_instead_of_appending(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = written(path, rounds=3)
    ledger.reexecutes = True
    before = path.read_bytes()
    assert ledger.charge(1, EVENT) == ledger.charges[0]
    assert path.read_bytes() == before
    with pytest.raises(LedgerBroken):
        ledger.charge(2, EVENT)  # round 2 was charged for OTHER


def test_beyond_the_budget_nothing_is_charged(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, TERMS)
    ledger.gate = Gate(2.0, 1e-5, "tightest", stride=10)

    def spend_without_end():
        for round in range(1, 1000):
            ledger.charge(round, EVENT)

    with pytest.raises(BudgetExceeded, match="epsilon above 2"):
        spend_without_end()
    loaded = Ledger.load(path)
    assert loaded.charges == ledger.charges
    assert 0 < spent(loaded, 1e-5).epsilon <= 2.0
