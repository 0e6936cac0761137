"""A ledger's heads in a separate file, which reveals whether charges were removed from its end.

The last lines of a ledger can be removed without a trace in the ledger, and a run's checkpoint has
only the head of its own round. The file of heads has one text line per line of the ledger: the hash
of the ledger's first line (as several ledgers may share the file), 16 hex digits that identify the
ledger's folder (if another ledger appears there, the earlier one was replaced), the line's number
from 1, the round that the line charges ("-" for none), and the head after the line.

Order: a line is first durable in the ledger, then its head in the file, and only then does `charge`
return and sampling begin. A crash between the two leaves the file without the last head. Cost: one
append and one sync per line of the ledger, that is, per round. The file holds no information beyond
the ledger. The file is useful only if those who can write to the ledger cannot rewrite the file:
place it on another machine's disk, or where lines can only be appended.
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
    """A ledger's head `hash` after its line number `line`, counted from 1.

    The line charged `round`; None if it is no charge. `ledger` is the hash of the first line, and
    `place` identifies the ledger's folder.
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
        """Returns every head, in order; ignores lines that a crash left incomplete.

        Raises `OSError` if the file is missing or unreadable, and `LedgerBroken` if it holds a line
        that is no head, nor the beginning of one.
        """
        lines = regular.read_bytes(self.path).decode("ascii", "replace").split("\n")
        return [
            head for number, line in enumerate(lines, start=1) for head in self._of(line, number)
        ]

    def add(self, heads: Iterable[Head]) -> None:
        """Appends `heads`, durably."""
        lines = [f"{h.ledger} {h.place} {h.line} {_word(h.round)} {h.hash}\n" for h in heads]
        if lines:
            append(self.path, ("\n" * self._torn() + "".join(lines)).encode())

    def _of(self, line: str, number: int) -> Iterator[Head]:
        if complete := _COMPLETE.fullmatch(line):
            ledger, place, number_there, round, head = complete.groups()
            charged = None if round == "-" else int(round)
            yield Head(ledger, place, int(number_there), charged, head)
        elif not _TORN.fullmatch(line):
            raise LedgerBroken(f"{self.path}: line {number} is not a ledger head; restore the file")

    def _torn(self) -> bool:
        """Whether the last line is incomplete, possibly from another run's crash."""
        if not self.path.exists():
            return False
        with regular.opened(self.path) as file:
            size = file.seek(0, 2)
            file.seek(max(size - 1, 0))
            return size > 0 and file.read(1) != b"\n"


def contradictions(held: Sequence[Head], stated: Sequence[Head], now: Sequence[Head]) -> list[str]:
    """Returns the first contradiction between the heads in a file and a ledger; empty without one.

    The text has the file as its subject ("lacks ..."). A run may be in progress, so the ledger is
    read before and after the file, and it is no contradiction if the file lacks the last of
    `stated`.

    Args:
      held: heads in the file.
      stated: the ledger's heads before the file was read.
      now: the ledger's heads after the file was read.
    """
    of_ledger = [head for head in held if head.ledger == stated[0].ledger]
    if replaced := others_at(stated[0].place, held, stated[0].ledger):
        charges = sum(head.round is not None for head in replaced)
        return [
            (f"contains {charges} charges of another ledger at this path: the ledger was replaced")
        ]
    known = {_without_place(head) for head in now}
    lost = [head for head in of_ledger if _without_place(head) not in known]
    if lost:
        charges = sum(head.round is not None for head in lost)
        return [
            (
                f"contains {len(lost)} heads that the ledger lacks: {charges} charges were "
                "removed from its end"
            )
        ]
    numbers = [head.line for head in of_ledger]
    if numbers != sorted({*numbers}):
        return ["contains heads of this ledger out of order: it was edited"]
    missing = len(
        {_without_place(head) for head in stated[:-1]}
        - {_without_place(head) for head in of_ledger}
    )
    if missing:
        return [
            (
                f"lacks {missing} heads from before the ledger's last head: lines of the file "
                "were removed"
            )
        ]
    return []


def lacking(held: Sequence[Head], stated: Sequence[Head]) -> list[Head]:
    """Returns the heads in `stated` that are later than the same ledger's last head in `held`.

    These are all heads in `stated` if `held` has none of the ledger.
    """
    last = max((head.line for head in held if head.ledger == stated[0].ledger), default=0)
    return [head for head in stated if head.line > last]


def others_at(place: str, held: Iterable[Head], ledger: str = "") -> list[Head]:
    """Returns the heads of ledgers other than `ledger` that were in the folder `place`."""
    return [head for head in held if head.place == place and head.ledger != ledger]


def place_of(ledger: Path) -> str:
    """Returns 16 hexadecimal digits that identify the folder of the file `ledger`."""
    return hashlib.sha256(os.fsencode(ledger.resolve().parent)).hexdigest()[:16]


def _without_place(head: Head) -> tuple[str, int, int | None, str]:
    """Returns `head` without the folder's digits, which change if a run directory is moved."""
    return head.ledger, head.line, head.round, head.hash


def _word(round: int | None) -> str:
    return "-" if round is None else str(round)
