"""Appends the ledger's heads to a file outside the run directory, and compares file and ledger.

The key `run.heads` names the file, and `accounting.heads` describes its content. The file reveals
that charges were removed, or that a copy of the run was continued separately, since both copies
would have appended to the same file.

The path must not change while the run continues: otherwise a user could evade the check by naming
another file. If the file has to move, leave a symbolic link at the old path.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from accounting.errors import LedgerBroken
from accounting.heads import Head, HeadsFile, contradictions, lacking, others_at, place_of
from accounting.ledger import Ledger
from privfed.core.errors import Broken, Refused, public_text

SHORTEST = 12
"""Minimum number of leading hexadecimal digits, out of 64, by which users may name a head."""


@dataclass(frozen=True)
class HeadsCheck:
    """The result of comparing a file of heads with a ledger.

    Attributes:
      path: path of the file of heads.
      agrees: whether the file agrees with the ledger; None if there is no file.
      problems: the contradictions between file and ledger as texts; empty if there are none.
    """

    path: str
    agrees: bool | None
    problems: tuple[str, ...] = ()


def refuse_unusable_heads(heads: str, out: Path | None = None) -> None:
    """Raises `Refused` if the heads of a new run's ledger cannot be appended to a file.

    Args:
      heads: value of `run.heads`, the path of the file; "" for no file, which is not refused.
      out: the run directory, which must not contain the file; None if it is not known.

    Raises:
      Refused: if the file is inside the run directory, cannot be written, is not a file of heads,
        or contains heads of an earlier run in `out`.
    """
    if not heads:
        return
    path = Path(heads)
    if out is not None and path.resolve().is_relative_to(out.resolve()):
        raise Refused(
            f"run.heads is {heads}, but that is inside the run directory, where both files "
            "could be truncated together; name a file elsewhere"
        )
    if path.exists() and not path.is_file():
        raise Refused(f"run.heads is {heads}, but that is not a file; name a file")
    writable = path if path.exists() else path.parent
    if not path.parent.is_dir() or not os.access(writable, os.W_OK):
        raise Refused(
            f"run.heads is {heads}, but that cannot be written; name a file in a writable folder"
        )
    if path.exists():
        try:
            held = HeadsFile(path).read()
        except (OSError, LedgerBroken) as error:
            raise Refused(f"run.heads: {public_text(error)}; name a new file") from None
        if out is not None and others_at(place_of(out / "ledger.jsonl"), held):
            raise Refused(
                f"run.heads is {heads}, but that file contains the heads of an earlier run in "
                f"{out}; name another run directory or another file, so that this run does not "
                "appear to replace that run"
            )


def keep_heads(ledger: Ledger, heads: str) -> None:
    """Appends the heads that a file lacks, and makes `ledger` append its future heads to the file.

    Args:
      ledger: the run's ledger.
      heads: value of `run.heads`, the path of the file; "" to do nothing.

    Raises:
      Broken: if the file is missing although the ledger has more than its first line, cannot be
        read, or contradicts the ledger.
    """
    if not heads:
        return
    path, trail = Path(heads), ledger.trail()
    if len(trail) > 1 and not path.is_file():
        raise Broken(
            f"run.heads is {heads}, but that file is missing; restore it, or, if it is lost, "
            "create an empty file, to which the ledger's heads are added again"
        )
    file = HeadsFile(path)
    held = _read_heads(file) if path.exists() else []
    missing = lacking(held, trail)
    before = trail[: len(trail) - len(missing) + 1]
    if problems := contradictions(held, before, trail):
        raise Broken(
            f"{heads} {problems[0]}, so the epsilon of this run can no longer be proved; restore "
            "the ledger or this file"
        )
    file.add(missing)
    ledger.heads_file = file


def check_heads(ledger: Ledger, heads: str) -> HeadsCheck | None:
    """Compares a file of heads with a ledger.

    Args:
      ledger: the run's ledger.
      heads: value of `run.heads`, the path of the file; "" for no file.

    Returns:
      The result of the check; None if `heads` is "".
    """
    if not heads:
        return None
    if not Path(heads).is_file():
        return HeadsCheck(heads, None)
    try:
        held = _read_heads(HeadsFile(Path(heads)))
    except Broken as error:
        return HeadsCheck(heads, False, (str(error),))
    now = Ledger.load(ledger.path)  # once more: a run in progress may have written both meanwhile
    problems = contradictions(held, ledger.trail(), now.trail())
    return HeadsCheck(heads, not problems, tuple(f"{heads} {problem}" for problem in problems))


def charges_since(ledger: Ledger, head: str) -> int | None:
    """Counts the charges in a ledger after the line with a given hash, its head at some time.

    Args:
      ledger: the run's ledger.
      head: the head in hexadecimal digits, or its first digits, at least `SHORTEST`.

    Returns:
      The number of charges; None if the ledger never had this head.

    Raises:
      Refused: if `head` does not consist of `SHORTEST` to 64 hexadecimal digits.
    """
    digits = head.strip().lower()
    if not re.fullmatch(rf"[0-9a-f]{{{SHORTEST},64}}", digits):
        raise Refused(
            f"--head is {head}; expected {SHORTEST} to 64 hexadecimal digits, as printed at the "
            "end of a run"
        )
    trail = ledger.trail()
    line = next((known.line for known in trail if known.hash.startswith(digits)), None)
    return None if line is None else sum(later.round is not None for later in trail[line:])


def _read_heads(file: HeadsFile) -> list[Head]:
    """Returns the heads in `file`. Raises `Broken` if the file cannot be read."""
    try:
        return file.read()
    except (OSError, LedgerBroken) as error:
        raise Broken(f"run.heads: {public_text(error)}") from None
