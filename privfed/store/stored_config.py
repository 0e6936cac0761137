"""The configuration of a run directory, built only where it is the one that the ledger states.

Building a configuration imports what it names (`module:name`), and importing runs code. A run
directory may have come from anybody, or been edited: its `config.toml` is held against the digest
in the ledger's first line, the ledger's chain against itself, and the checkpoint against the
ledger, before any of its parts is built. Whoever writes all three anew can still name what they
like: take run directories, as programs, from those whom you trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accounting.errors import LedgerBroken
from accounting.ledger import Ledger
from privfed.config.config import Config, digest
from privfed.config.reading import outside, resolved
from privfed.errors import Broken, Refused, public_text, unreadable
from privfed.models.pretrained import CHECKPOINT
from privfed.store.tensorfile import fitting, stated


def stored_config(path: Path, ledger: Path) -> Config:
    """The configuration at `path`, of the run whose ledger lies at `ledger`.

    Raises `Broken` where it is no run file, or not what the ledger states, and `Refused` for parts
    that are not at hand. Of a run that had not begun nothing states the digest: it is refused where
    it names parts from outside.
    """
    text = _text(path)
    terms = _terms(ledger)
    if not terms:
        _refuse_outside(text, path)
    elif terms.get("config") != _digest(text, path):
        raise Broken(
            f"{path.parent}: config.toml is not the configuration that the ledger was opened for; "
            "it was edited, and nothing that it names was imported. Restore it, or start a new run"
        )
    return resolved(text, str(path))


def _terms(ledger: Path) -> Mapping[str, Any]:
    """What `ledger` states, which holds the head of the checkpoint beside it; nothing, without it.

    Raises `Broken` where any of its lines was edited, or the checkpoint is of another ledger.
    """
    checkpoint = ledger.parent / CHECKPOINT
    head = _head(checkpoint) if checkpoint.exists() else None  # first: a run may be going on
    if not ledger.exists():
        return {}
    try:
        chained = Ledger.load(ledger)
    except LedgerBroken as error:
        raise Broken(public_text(error)) from None
    if head is not None and chained.opened and not chained.holds(head):
        raise Broken(
            f"{ledger} ends before the checkpoint beside it, or is not the ledger that it was "
            "written under; restore it"
        )
    return chained.terms


def _head(checkpoint: Path) -> bytes:
    """The ledger's head that a checkpoint states."""
    with fitting(checkpoint):
        return bytes.fromhex(str(stated(checkpoint)["ledger_head"]))


def stored_digest(path: Path) -> str:
    """The digest of the configuration at `path`. Raises `Broken` where it is no run file."""
    return _digest(_text(path), path)


def _refuse_outside(text: str, path: Path) -> None:
    _digest(text, path)
    if named := outside(text, str(path)):
        raise Refused(
            f"{path.parent} has no ledger that states its configuration: its run had not begun. "
            f"{', '.join(named)} there would import code, which nothing vouches for; delete the "
            "directory, and start the run again"
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def _digest(text: str, path: Path) -> str:
    try:
        return digest(text)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise unreadable(path, error) from None
