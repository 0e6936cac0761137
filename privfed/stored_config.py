"""The configuration of a run directory, built only where it is the one that the ledger states.

Building a configuration imports what it names (`module:name`), and importing runs code. A run
directory may have come from anybody, or been edited: its `config.toml` is held against the digest
in the ledger's first line before any of its parts is built. That line follows from nothing but
itself, so whoever writes a whole directory anew can name what they like: take run directories, as
programs, from those whom you trust.
"""

from __future__ import annotations

from pathlib import Path

from accounting.ledger import terms_at
from privfed.config import Config, digest, outside, resolved
from privfed.errors import Broken, Refused, unreadable


def stored_config(path: Path, ledger: Path) -> Config:
    """The configuration at `path`, of the run whose ledger lies at `ledger`.

    Raises `Broken` where it is no run file, or not what the ledger states, and `Refused` for parts
    that are not at hand. Of a run that had not begun nothing states the digest: it is refused where
    it names parts from outside.
    """
    text = _text(path)
    terms = terms_at(ledger)
    if not terms:
        _refuse_outside(text, path)
    elif terms.get("config") != _digest(text, path):
        raise Broken(
            f"{path.parent}: config.toml is not the configuration that the ledger was opened for; "
            "it was edited, and nothing that it names was imported. Restore it, or start a new run"
        )
    return resolved(text, str(path))


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
