"""The folder `state/` of a site, which only its owner may read, with one folder per run.

A run's folder contains its declaration, a copy of the coordinator's ledger, to which lines are only
added, and two files on the current sum: the question (the coordinator's request for the sum), and
the state of the site's party (its participant in the sum).

A coordinator could roll its ledger back (to charge rounds once and sample them twice), or use a
second ledger. It would then send a site lines that differ from earlier ones. The site refuses these
lines, and keeps those that it has seen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accounting import chain, durable, regular
from accounting.durable import make_folder, write_atomically
from accounting.errors import AccountingError, LedgerBroken
from accounting.ledger import Ledger
from privfed.core.errors import public_text
from privfed.deploy.site.policy import Code, Declined, Refusal


@dataclass(frozen=True)
class PartyStore:
    """The files of the current sum: its question, and the state of the site's party in it.

    The question of a sum is stored durably before the party's first state in that sum. The folder
    holds secrets: do not back it up or restore it.
    """

    folder: Path

    def begin(self, question: bytes) -> None:
        """Stores the `question` of a new sum; deletes the previous question and state."""
        make_folder(self.folder, 0o700)
        self._state.unlink(missing_ok=True)
        self._write(self._question, question)

    def commit(self, state: bytes) -> None:
        """Stores a party's `state` durably, replacing the previous one."""
        self._write(self._state, state)

    @property
    def question(self) -> bytes | None:
        """The stored question; None if there is none."""
        return regular.read_bytes(self._question) if self._question.exists() else None

    def read(self) -> tuple[bytes, bytes] | None:
        """Returns the current question and the party's last state; None if either is missing."""
        if not self._state.exists() or not self._question.exists():
            return None
        return regular.read_bytes(self._question), regular.read_bytes(self._state)

    @property
    def _question(self) -> Path:
        return self.folder / "question"

    @property
    def _state(self) -> Path:
        return self.folder / "party"

    def _write(self, path: Path, content: bytes) -> None:
        before = os.umask(0o077)
        try:
            write_atomically(path, content)
        finally:
            os.umask(before)


@dataclass
class LedgerCopy:
    """A site's verified copy of the coordinator's ledger, in the file at `path`.

    Raises `Declined` if the file holds no valid ledger; an incomplete last line is removed.
    """

    path: Path

    def __post_init__(self) -> None:
        data = regular.read_bytes(self.path) if self.path.exists() else b""
        *lines, torn = data.split(b"\n")
        if torn:  # left by a crash: no question was answered for that line
            with _owner_only():
                durable.write_atomically(self.path, data[: len(data) - len(torn)])
        self._lines = lines
        self._heads = [chain.START, *self._hashes(chain.START, lines)]
        self._ledger = self._read(lines)
        self._failed = False

    @property
    def head(self) -> bytes:
        """The hash of the last line, 32 bytes; all zero before the first line."""
        return bytes.fromhex(self._heads[-1])

    @property
    def ledger(self) -> Ledger:
        """The ledger that consists of the copied lines."""
        return self._ledger

    def extend(self, since: bytes, data: bytes) -> None:
        """Appends new lines durably; lines that the copy already has may be repeated unchanged.

        Args:
          since: hash of the line that `data` follows, 32 bytes.
          data: complete lines of the ledger.

        Raises:
          Declined: if `data` ends within a line, or the copy has no line of that hash, has other
            lines after that line, or would become an invalid ledger.
          LedgerBroken: if an earlier line could not be written.
        """
        *lines, torn = data.split(b"\n")
        if torn or since.hex() not in self._heads:
            raise _declined("its new lines do not follow a line that this site has seen")
        start = self._heads.index(since.hex())
        known = self._lines[start:]
        if known[: len(lines)] != lines[: len(known)]:
            raise _declined("its lines differ from those that this site has seen")
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
        """Appends `lines` durably to a file that only its owner may read."""
        with _owner_only():
            durable.make_folder(self.path.parent, 0o700)
            durable.append(self.path, lines)

    def _hashes(self, previous: str, lines: list[bytes]) -> list[str]:
        try:
            links = chain.following(previous, lines, "the coordinator's ledger")
        except AccountingError as error:
            raise _declined(public_text(error)) from error
        return [link["hash"] for link in links]

    def _read(self, lines: list[bytes]) -> Ledger:
        """Parses `lines`, a ledger from its first line on.

        Raises `Declined` if the lines are invalid.
        """
        try:
            return Ledger(self.path, chain.following(chain.START, lines, self.path))
        except AccountingError as error:
            raise _declined(public_text(error)) from error


@contextlib.contextmanager
def _owner_only() -> Iterator[None]:
    """Makes files that the block creates readable by their owner only."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


def _declined(reason: str) -> Declined:
    return Declined(Refusal(Code.LEDGER, f"the coordinator's ledger: {reason}"))


@dataclass(frozen=True)
class RunState:
    """The folder of one run at a site: declaration, copy of the ledger, and the current sum."""

    folder: Path

    @property
    def parties(self) -> PartyStore:
        """The files of the current sum, in the run's folder."""
        return PartyStore(self.folder)

    def ledger(self) -> LedgerCopy:
        """Reads the copy of the coordinator's ledger; it is empty if there is no file.

        Raises `Declined` if the copy is invalid.
        """
        return LedgerCopy(self.folder / "ledger.jsonl")

    def declare(self, declaration: bytes) -> None:
        """Stores the bytes of a `declaration` durably; it replaces an earlier declaration."""
        before = os.umask(0o077)
        try:
            make_folder(self.folder, 0o700)
            write_atomically(self.folder / "declaration", declaration)
        finally:
            os.umask(before)


def stored_questions(folder: Path) -> dict[str, bytes]:
    """Returns the last question that a site stored in `folder` for each run, by the run's hash.

    Runs without a stored question are left out.
    """
    stored = {each.name: RunState(each).parties.question for each in folder.glob("*")}
    return {run: question for run, question in stored.items() if question is not None}
