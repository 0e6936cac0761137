"""A hash-chained file of JSON lines: append and fsync, read and verify.

Each line is the canonical JSON of one object whose last key, `hash`, is the SHA-256 of the previous
line's hash and of the object without its own hash. An edit, a removal in the middle or a reordering
breaks the chain at that line. Rewriting every following line leaves no trace in the file: compare
`head` with a copy that is stored elsewhere (a checkpoint has one).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accounting import regular
from accounting.documents import from_json
from accounting.errors import LedgerBroken

START = "0" * 64
"""The hash that serves as the previous hash of the first line."""
Link = Mapping[str, Any]
"""The JSON object of one line."""
_CHARGE = re.compile(
    rb'\{"event":(0|[1-9]\d{0,17}),"hash":"([0-9a-f]{64})","round":(0|[1-9]\d{0,17}),"type":"charge"\}'
)
"""A charge in its canonical form; nearly all lines of a long ledger are read by this pattern."""


class Chain(NamedTuple):
    """The objects of a file's verified lines, and whether an incomplete line follows (`torn`)."""

    links: list[Link]
    torn: bool


def read(path: Path) -> Chain:
    """Reads and verifies the lines of `path`, without a last line that lacks its newline.

    Raises:
      LedgerBroken: if a complete line is invalid or does not continue the chain; the message names
        the line.
      OSError: as `regular.opened`, for example if the file is missing.
    """
    *lines, tail = regular.read_bytes(path).split(b"\n")
    return Chain(following(START, lines, path), torn=bool(tail))


def first(path: Path) -> Link:
    """Reads and verifies only the first line of `path`. Raises `LedgerBroken` if it is invalid."""
    with regular.opened(path) as file:
        line, newline, _ = file.readline().partition(b"\n")
    if not newline:
        raise LedgerBroken(
            f"{path}: the first line, which states the run, is missing or incomplete; restore the "
            "file"
        )
    return _following(START, line, path, 1)


def following(previous: str, lines: Sequence[bytes], of: object, number: int = 1) -> list[Link]:
    """Verifies `lines` (without their newlines), which follow the hash `previous`.

    Args:
      previous: hash of the line before the first of `lines`.
      lines: the lines.
      of: name of the file in messages.
      number: number of the first line.

    Returns:
      The objects of the lines.

    Raises:
      LedgerBroken: if a line is invalid or does not continue the chain.
    """
    links: list[Link] = []
    for line in lines:
        link = _following(previous, line, of, number + len(links))
        links.append(link)
        previous = link["hash"]
    return links


def sealed(previous: str, body: Mapping[str, Any]) -> tuple[bytes, Link]:
    """Returns the line (with newline) that continues the chain after `previous`, and its object."""
    link = {**body, "hash": _hash(previous, _canonical(body))}
    return _canonical(link) + b"\n", link


def _following(previous: str, line: bytes, path: object, number: int) -> Link:
    if charge := _CHARGE.fullmatch(line):
        event, stated, round = charge.groups()
        link: Link = {
            "event": int(event),
            "hash": stated.decode(),
            "round": int(round),
            "type": "charge",
        }
        body = b'{"event":%b,"round":%b,"type":"charge"}' % (event, round)
    else:
        link = _parse(line, path, number)
        body = _canonical({key: value for key, value in link.items() if key != "hash"})
    if link["hash"] != _hash(previous, body):
        raise LedgerBroken(
            f"{path}, line {number}: does not follow from the lines before it, so the ledger was "
            "edited, truncated or reordered, and its epsilon has no proof; restore the file"
        )
    return link


def _parse(line: bytes, path: object, number: int) -> Link:
    try:
        link = from_json(line)
    except ValueError as error:
        raise LedgerBroken(
            f"{path}, line {number}: is not JSON ({error}); restore the file"
        ) from error
    if not isinstance(link, dict) or not isinstance(link.get("hash"), str):
        raise LedgerBroken(
            f"{path}, line {number}: is not a ledger line, since it has no hash; restore the file"
        )
    if _canonical(link) != line:
        raise LedgerBroken(
            f"{path}, line {number}: was rewritten by another program; restore the file"
        )
    return link


def _hash(previous: str, body: bytes) -> str:
    return hashlib.sha256(previous.encode() + b"\n" + body).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=True).encode()
