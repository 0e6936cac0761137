"""A ledger's heads, kept in a file elsewhere, where charges that were cut off its end show.

A ledger's last lines can be removed without a trace in it, and a run's checkpoint keeps the head of
its own round only. The file has one text line per line of the ledger: the hash of the ledger's
first line (whose ledger it is: several may share the file), 16 digits for the folder that it lies
in (where another ledger took its place, it was replaced), the line's number from 1, the round that
it charges ("-" for none), and the head after it.

Order: a line is durable in the ledger, then its head in the file, and only then has `charge`
returned and may anybody be drawn. A crash between the two leaves the file without the last head.
Cost: one append and one sync there per line of the ledger, that is, per round. It holds nothing
that the ledger does not, and is worth what stands between it and whoever can write to the ledger:
put it on another machine's disk, or where lines can only be appended.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from accounting import regular
from accounting.durable import append
from accounting.errors import LedgerBroken

_HASH = "[0-9a-f]{64}"
_PLACE = "[0-9a-f]{16}"
_COMPLETE = re.compile(rf"({_HASH}) ({_PLACE}) (\d+) (-|\d+) ({_HASH})")
_TORN = re.compile(
    rf"[0-9a-f]{{0,64}}|{_HASH} [0-9a-f]{{0,16}}|{_HASH} {_PLACE} \d*"
    rf"|{_HASH} {_PLACE} \d+ ((-|\d*)|(-|\d+) [0-9a-f]{{0,63}})"
)


class Head(NamedTuple):
    """A ledger's head after its line `line`, which charged `round` (None: it charged none).

    `ledger` is the hash of the first line, `place` stands for the folder that it lay in.
    """

    ledger: str
    place: str
    line: int
    round: int | None
    hash: str


class HeadsFile:
    """A file of heads at `path`, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Head]:
        """Every head, in order; one that a crash tore is left out.

        Raises `OSError`, and `LedgerBroken` for a file that holds anything else.
        """
        lines = regular.read_bytes(self.path).decode("ascii", "replace").split("\n")
        return [
            head for number, line in enumerate(lines, start=1) for head in self._of(line, number)
        ]

    def add(self, heads: Iterable[Head]) -> None:
        """Append `heads`; durable when this returns."""
        lines = [f"{h.ledger} {h.place} {h.line} {_word(h.round)} {h.hash}\n" for h in heads]
        if lines:
            append(self.path, ("\n" * self._torn() + "".join(lines)).encode())

    def _of(self, line: str, number: int) -> Iterator[Head]:
        if complete := _COMPLETE.fullmatch(line):
            ledger, place, number_there, round, head = complete.groups()
            charged = None if round == "-" else int(round)
            yield Head(ledger, place, int(number_there), charged, head)
        elif not _TORN.fullmatch(line):
            raise LedgerBroken(f"{self.path} is no file of heads: line {number} is none")

    def _torn(self) -> bool:
        """Whether the last line has no end, which another run's crash may have left."""
        if not self.path.exists():
            return False
        with regular.opened(self.path) as file:
            size = file.seek(0, 2)
            file.seek(max(size - 1, 0))
            return size > 0 and file.read(1) != b"\n"


def contradictions(held: Sequence[Head], stated: Sequence[Head], now: Sequence[Head]) -> list[str]:
    """What in the heads `held` in a file contradicts a ledger; empty where nothing does.

    The ledger's heads were `stated` before the file was read, and are `now` after: a run may be
    going on.
    """
    of_ledger = [head for head in held if head.ledger == stated[0].ledger]
    if replaced := others_at(stated[0].place, held, stated[0].ledger):
        charges = sum(head.round is not None for head in replaced)
        return [f"holds {charges} charges of another ledger that lay here: it was replaced"]
    known = {_without_place(head) for head in now}
    lost = [head for head in of_ledger if _without_place(head) not in known]
    if lost:
        charges = sum(head.round is not None for head in lost)
        return [f"holds {len(lost)} heads that the ledger lacks: {charges} charges were cut off it"]
    numbers = [head.line for head in of_ledger]
    if numbers != sorted({*numbers}):
        return ["holds heads of this ledger out of order: it was edited"]
    missing = len(
        {_without_place(head) for head in stated[:-1]}
        - {_without_place(head) for head in of_ledger}
    )
    if missing:
        return [f"lacks {missing} heads that come before the ledger's last: lines of it are gone"]
    return []


def lacking(held: Sequence[Head], stated: Sequence[Head]) -> list[Head]:
    """The last heads of those `stated`: the ones after all that are `held` of that ledger."""
    last = max((head.line for head in held if head.ledger == stated[0].ledger), default=0)
    return [head for head in stated if head.line > last]


def others_at(place: str, held: Iterable[Head], ledger: str = "") -> list[Head]:
    """The heads of ledgers other than `ledger` that lay at `place`."""
    return [head for head in held if head.place == place and head.ledger != ledger]


def place_of(ledger: Path) -> str:
    """16 digits for the folder that the file `ledger` lies in."""
    return hashlib.sha256(os.fsencode(ledger.resolve().parent)).hexdigest()[:16]


def _without_place(head: Head) -> tuple[str, int, int | None, str]:
    """`head` without its place: a run may be moved."""
    return head.ledger, head.line, head.round, head.hash


def _word(round: int | None) -> str:
    return "-" if round is None else str(round)
