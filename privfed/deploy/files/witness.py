"""A second copy of a site's receipts, on another disk, by which a restored backup is noticed.

`receipts.jsonl` of yesterday is a valid chain: alone, it cannot show that lines are missing. The
witness holds the same lines and is written after each of them, so it never has more lines than the
receipts, unless these are an older copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accounting import chain, durable, regular
from accounting.errors import LedgerBroken
from privfed.core.errors import public_text


@dataclass(frozen=True)
class ReceiptsWitness:
    """The copy at `path` of the receipts at `receipts`."""

    path: Path
    receipts: Path

    def missing(self) -> list[bytes]:
        """Returns the lines of the copy that the receipts lack, without line ends.

        Raises:
          LedgerBroken: if either file cannot be read; if neither is the beginning of the other; or
            if there is no copy, or it is in the folder of the receipts.
        """
        self._refuse_place()
        copied, ours = (_lines(each) for each in (self.path, self.receipts))  # an agent may write
        shorter = min(len(ours), len(copied))
        if ours[:shorter] != copied[:shorter]:
            raise LedgerBroken(
                f"{self.receipts} and its witness {self.path} differ, so one of the two belongs to "
                "another site, or was edited; find out which, and set witness in data.toml"
            )
        return copied[len(ours) :]

    def refuse_missing(self) -> None:
        """Raises `LedgerBroken` if the receipts lack lines of the witness."""
        if lost := len(self.missing()):
            raise LedgerBroken(
                f"{self.receipts} lacks {lost} of the lines in its witness {self.path}, so an "
                f"older copy was restored; run privfed site recover {self.receipts.parent}"
            )

    def restore(self) -> int:
        """Appends to the receipts the lines that they lack, and returns the number of these lines.

        Raises:
          LedgerBroken: as `missing` does; also if the witness is no valid chain.
        """
        if missing := self.missing():
            chain.read(self.path)
            durable.write_atomically(self.receipts, _joined(_lines(self.receipts) + missing))
            self.receipts.chmod(0o600)
        return len(missing)

    def replace_damaged(self) -> Path | None:
        """Replaces damaged receipts by the witness; returns the new path of the damaged file.

        A line is in the witness before its question is answered, so no answer is lost. Does nothing
        and returns None if the receipts are a valid chain, or the witness is not one.
        """
        self._refuse_place()
        try:
            chain.read(self.receipts)
        except LedgerBroken:
            links, _ = chain.read(self.path)
            if not links:
                return None
            damaged = self.receipts.with_name(
                f"receipts.damaged.{self.receipts.stat().st_mtime_ns}"
            )
            self.receipts.rename(damaged)
            durable.write_atomically(self.receipts, _joined(_lines(self.path)))
            self.receipts.chmod(0o600)
            return damaged
        return None

    def catch_up(self) -> None:
        """Appends to the witness the lines that it lacks: a crash may prevent its last writes.

        Raises `LedgerBroken` if the witness does not hold the beginning of the receipts, or cannot
        be written.
        """
        lines = _joined(_lines(self.receipts))
        try:
            copied = regular.read_bytes(self.path)
            if not lines.startswith(copied):
                raise LedgerBroken(
                    f"the witness {self.path} does not begin like {self.receipts}; name another "
                    "file as witness in data.toml"
                )
            if copied != lines:
                durable.append(self.path, lines[len(copied) :])
        except OSError as error:
            refused = self._unavailable(error)
            raise refused from error

    def _refuse_place(self) -> None:
        """Raises `LedgerBroken` unless the witness is a file outside the folder of the receipts."""
        folder = self.receipts.parent.resolve()
        if self.path.is_symlink() or self.path.resolve().is_relative_to(folder):
            raise LedgerBroken(
                f"witness is {self.path}, but it has to be a file, and no link, outside of "
                f"{folder}, on a disk that is not restored with it; change witness in data.toml"
            )
        if not self.path.is_file():
            raise LedgerBroken(
                f"the witness {self.path} does not exist; make its disk available, or copy "
                f"{self.receipts} there if the witness is new"
            )

    def append(self, lines: bytes) -> None:
        """Appends complete `lines` durably. Raises `LedgerBroken` if they cannot be written."""
        self._refuse_place()
        try:
            durable.append(self.path, lines)
        except OSError as error:
            refused = self._unavailable(error)
            raise refused from error

    def _unavailable(self, error: OSError) -> LedgerBroken:
        return LedgerBroken(
            f"the witness {self.path} cannot be written: {public_text(error)}; make its disk "
            "available, or change witness in data.toml"
        )


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _lines(path: Path) -> list[bytes]:
    """Returns the complete lines of the file at `path`; an empty list if there is no file.

    Raises `LedgerBroken` if the file cannot be read.
    """
    try:
        return regular.read_bytes(path).split(b"\n")[:-1] if path.exists() else []
    except OSError as error:
        raise LedgerBroken(f"{path} cannot be read: {public_text(error)}") from error
