"""A site's copy of a coordinator's ledger: it grows, and no line of it ever changes.

Who would roll the ledger back, so that rounds are charged once and drawn twice, or keep a second
one, has to show a site other lines than it saw before: it refuses them, and keeps what it saw.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accounting import chain, durable, regular
from accounting.errors import AccountingError, LedgerBroken
from accounting.ledger import Ledger
from privfed.deploy.policies.codes import Code, Declined, Refusal
from privfed.errors import public_text


@dataclass
class LedgerCopy:
    """The lines that the file at `path` holds, verified."""

    path: Path

    def __post_init__(self) -> None:
        data = regular.read_bytes(self.path) if self.path.exists() else b""
        *lines, torn = data.split(b"\n")
        if torn:  # of a crash: nothing was answered for that line
            with _for_nobody_else():
                durable.write_atomically(self.path, data[: len(data) - len(torn)])
        self._lines = lines
        self._heads = [chain.START, *self._hashes(chain.START, lines)]
        self._ledger = self._read(lines)
        self._failed = False

    @property
    def head(self) -> bytes:
        """The hash `[32]` of the last line seen."""
        return bytes.fromhex(self._heads[-1])

    @property
    def ledger(self) -> Ledger:
        """What was seen of the ledger."""
        return self._ledger

    def extend(self, since: bytes, data: bytes) -> None:
        """Add those `data` that follow the line of hash `since`, durably.

        Lines that were seen before may come again, as they were. Raises `Declined` where anything
        else follows there, or `since` was never seen.
        """
        *lines, torn = data.split(b"\n")
        if torn or since.hex() not in self._heads:
            raise _declined("lines that follow none that was seen")
        start = self._heads.index(since.hex())
        known = self._lines[start:]
        if known[: len(lines)] != lines[: len(known)]:
            raise _declined("other lines than were seen before")
        new = lines[len(known) :]
        if not new:
            return
        heads, ledger = self._hashes(self._heads[-1], new), self._read([*self._lines, *new])
        if self._failed:
            raise LedgerBroken(f"{self.path}: a line could not be written; start the site again")
        self._failed = True  # until the lines are durable: a part of them may be in the file
        self._append(b"".join(line + b"\n" for line in new))
        self._failed = False
        self._lines, self._heads, self._ledger = self._lines + new, self._heads + heads, ledger

    def _append(self, lines: bytes) -> None:
        """Append `lines`, durably, to a file that nobody else may read."""
        with _for_nobody_else():
            durable.make_folder(self.path.parent, 0o700)
            durable.append(self.path, lines)

    def _hashes(self, previous: str, lines: list[bytes]) -> list[str]:
        try:
            links = chain.following(previous, lines, "the coordinator's ledger")
        except AccountingError as error:
            raise _declined(public_text(error)) from error
        return [link["hash"] for link in links]

    def _read(self, lines: list[bytes]) -> Ledger:
        """The ledger that all `lines` make. Raises `Declined` where they make none."""
        try:
            return Ledger(self.path, chain.following(chain.START, lines, self.path))
        except AccountingError as error:
            raise _declined(public_text(error)) from error


@contextlib.contextmanager
def _for_nobody_else() -> Iterator[None]:
    """New files are readable by their owner alone."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


def _declined(reason: str) -> Declined:
    return Declined(Refusal(Code.LEDGER, f"the coordinator's ledger: {reason}"))
