"""Whatever was spoiled is read or refused: short here, thousands of cases by `make test-slow`."""

import time
from pathlib import Path

import pytest
from trials.fuzz import Fault, Target, fuzz
from trials.mutations import spoiled_files
from trials.targets import TARGETS
from waiting import BRIEF, LONG

from privfed.core.errors import Refused

SLOW = [name for name in TARGETS if "run director" in name]


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_spoiled_is_read_or_refused(tmp_path, name):
    outcomes = fuzz(name, TARGETS[name], tmp_path, range(12 if name in SLOW else 30))
    assert sum(outcomes.values()) >= 12
    assert outcomes["refused"] or "audited" in name, "an audit tells of what is wrong instead"


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_what_was_spoiled_in_any_way_is_read_or_refused(tmp_path, name):
    fuzz(name, TARGETS[name], tmp_path, range(500 if name in SLOW else 5000))


def reads(place: Path) -> None:
    if (place / "file").read_bytes() != b"whole":
        raise Refused("it is not whole")


def bug(place: Path) -> None:
    if (place / "file").read_bytes() != b"whole":
        raise KeyError("whole")


def hangs(place: Path) -> None:
    if (place / "file").read_bytes() != b"whole":
        time.sleep(LONG)


def writes(place: Path) -> None:
    (place / "file").write_bytes(b"whole")


@pytest.mark.parametrize(
    "read, why, seconds",
    [
        (bug, "KeyError", LONG),
        (hangs, "not done after", BRIEF),
        (writes, "has changed", LONG),
    ],
)
def test_a_fault_is_noticed(tmp_path, monkeypatch, read, why, seconds):
    monkeypatch.setattr("trials.fuzz.SECONDS", seconds)
    target = Target(lambda _: [{"file": b"whole"}], spoiled_files, read)
    with pytest.raises(Fault, match=why):
        fuzz("a target", target, tmp_path, range(5))


def test_what_is_refused_counts_as_refused(tmp_path):
    target = Target(lambda _: [{"file": b"whole"}], spoiled_files, reads, (Refused, OSError))
    assert fuzz("a target", target, tmp_path, range(5))["refused"] >= 4
