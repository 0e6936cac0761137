"""A file of heads: what is appended is read back, and what does not fit a ledger is named."""

import pytest
from lanes import every_case

from accounting.errors import LedgerBroken
from accounting.events import Event
from accounting.heads import HeadsFile, contradictions, lacking
from accounting.ledger import Ledger
from accounting.noises import Gaussian

EVENT = Event(Gaussian(1.0), "full", "zero-out")


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"id": "a"})
    ledger.heads_file = HeadsFile(tmp_path / "heads")
    ledger.heads_file.add(ledger.trail())
    for round in (1, 2, 4):
        ledger.charge(round, EVENT)
    ledger.change_budget(1.0, 2.0, EVENT)
    return ledger


def test_every_line_of_the_ledger_has_its_head_there(ledger):
    held = ledger.heads_file.read()
    assert held == [*ledger.trail()]
    assert [head.round for head in held] == [None, None, 1, 2, 4, None]
    assert held == [*Ledger.load(ledger.path).trail()]
    assert held[-1].hash == ledger.head().hex()
    assert {head.ledger for head in held} == {held[0].hash}


def test_a_head_is_durable_after_its_line_and_before_the_charge_returns(ledger, monkeypatch):
    order = []
    real = HeadsFile.add
    monkeypatch.setattr(
        HeadsFile,
        "add",
        lambda self, heads: (order.append(Ledger.load(ledger.path).head()), real(self, heads)),
    )
    ledger.charge(5, EVENT)
    assert order == [ledger.head()]
    assert ledger.heads_file.read()[-1].hash == ledger.head().hex()


def test_a_head_that_cannot_be_written_lets_nobody_be_drawn(ledger, monkeypatch):
    """The line is spent; until the run is resumed no other one is written."""

    def full(self, heads):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(HeadsFile, "add", full)
        with pytest.raises(OSError, match="No space"):
            ledger.charge(5, EVENT)
    with pytest.raises(LedgerBroken, match="resume the run"):
        ledger.charge(6, EVENT)
    assert Ledger.load(ledger.path).charges[-1].round == 5


def test_of_a_ledger_and_its_file_each_difference_is_named(ledger):
    held, trail = ledger.heads_file.read(), ledger.trail()
    assert contradictions(held, trail, trail) == []
    assert contradictions(held[:-1], trail, trail) == [], "a crash came between the two"
    assert contradictions(held, trail[:-2], trail) == [], "the run went on meanwhile"
    for cut, said in (
        (contradictions(held, trail[:3], trail[:3]), "3 heads that the ledger lacks: 2 charges"),
        (contradictions(held[:-2], trail, trail), "lacks 1 heads"),
        (contradictions(held[1:], trail, trail), "lacks 1 heads"),
        (contradictions([], trail, trail), "lacks 5 heads"),
        (contradictions([held[1], held[0], *held[2:]], trail, trail), "out of order"),
        (contradictions([held[0], *held], trail, trail), "out of order"),
        (contradictions([held[0]._replace(round=9), *held[1:]], trail, trail), "1 charges"),
    ):
        assert len(cut) == 1
        assert said in cut[0]
    assert lacking(held[:3], trail) == [*trail[3:]]
    assert lacking([], trail) == [*trail]
    assert lacking(held, trail) == []


def test_ledgers_that_share_a_file_do_not_mix(ledger, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    other = Ledger.create(tmp_path / "elsewhere" / "other.jsonl", {"id": "b"})
    other.heads_file = ledger.heads_file
    other.heads_file.add(other.trail())
    other.charge(1, EVENT)
    ledger.charge(5, EVENT)
    held = ledger.heads_file.read()
    for one in (ledger, other):
        assert contradictions(held, one.trail(), one.trail()) == []


def test_what_a_crash_tore_is_left_out_wherever_it_stands(ledger, tmp_path):
    content = ledger.heads_file.path.read_bytes()
    *before, last = content.splitlines(keepends=True)
    for length in (0, 1, 63, 64, 65, 66, 67, 68, 80, len(last) - 2):
        (tmp_path / "torn").write_bytes(b"".join(before) + last[:length])
        torn = HeadsFile(tmp_path / "torn")
        assert torn.read() == [*ledger.trail()[:-1]]
        torn.add(ledger.trail()[-1:])
        assert torn.read() == [*ledger.trail()]


@every_case("content", ["notes\n", "a" * 65, "\x00", "ab cd\n", "é"])
def test_a_file_of_something_else_is_none(tmp_path, content):
    (tmp_path / "file").write_text(content)
    with pytest.raises(LedgerBroken, match="line 1 is not a ledger head"):
        HeadsFile(tmp_path / "file").read()
