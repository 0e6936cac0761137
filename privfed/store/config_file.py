"""The configuration of a run directory, built only where it is the one that the ledger states.

Building a configuration imports what it names (`module:name`), and importing runs code. A run
directory may have come from anybody, or been edited: its `config.toml` is held against the digest
in the ledger's first line, the ledger's chain against itself, and the checkpoint against the
ledger, before any of its parts is built. Whoever writes all three anew can still name what they
like: take run directories, as programs, from those whom you trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from accounting import durable, regular
from accounting.documents import from_toml
from accounting.errors import LedgerBroken
from accounting.ledger import Ledger
from privfed.config.config import Config, digest
from privfed.config.reading import keys_of_outside_parts, read_resolved
from privfed.core.errors import Broken, Refused, public_text, unreadable
from privfed.models.pretrained import CHECKPOINT
from privfed.store.tensorfile import misfits_are_broken, stated_facts


@dataclass(frozen=True)
class ConfigFile:
    """The file `config.toml` at `path`, of the run whose ledger lies at `ledger`.

    `given` are classes to take for parts that it names, by kind.
    """

    path: Path
    ledger: Path
    given: Mapping[str, type[Any]] = field(default_factory=dict)

    @classmethod
    def in_folder(cls, folder: Path, given: Mapping[str, type[Any]] | None = None) -> ConfigFile:
        """The configuration of the run directory `folder`."""
        return cls(folder / "config.toml", folder / "ledger.jsonl", given or {})

    def read(self) -> Config:
        """Build the configuration that the ledger was opened for.

        Raises `Broken` where the file is no run file, or not what the ledger states, and `Refused`
        for parts that are not at hand. Of a run that had not begun nothing states the digest: it is
        refused where it names parts from outside.
        """
        text = _text(self.path)
        terms = _terms(self.ledger)
        if not terms:
            _refuse_outside(text, self.path)
        elif terms.get("config") != _digest(text, self.path):
            raise Broken(
                f"{self.path.parent}: config.toml is not the configuration that the ledger was "
                "opened for; it was edited, and nothing that it names was imported. Restore it, or "
                "start a new run"
            )
        return read_resolved(text, str(self.path), self.given)

    def digest(self) -> str:
        """The digest of the file as it is written. Raises `Broken` where it is no run file."""
        return _digest(_text(self.path), self.path)

    def heads_file(self) -> str:
        """The path that `run.heads` names ("" for none), read without building any part."""
        return str(self._document()["run"].get("heads", ""))

    def rounds(self) -> int:
        """The rounds that the run plans, read without building any part."""
        return int(self._document()["run"]["rounds"])

    def write(self, config: Config) -> None:
        """Write `config`, which a run then goes by."""
        durable.write_atomically(self.path, config.toml().encode())

    def change(self, rounds: int, epsilon: float | None) -> None:
        """Set the two keys that may change, and leave the others as they are written.

        These are `run.rounds` and, unless it is None, `privacy.epsilon`.
        """
        document = self._document()
        document["run"]["rounds"] = rounds
        if epsilon is not None:
            document["privacy"]["epsilon"] = epsilon
        durable.write_atomically(self.path, tomli_w.dumps(document).encode())

    def _document(self) -> dict[str, Any]:
        return from_toml(regular.read_text(self.path))


def _terms(ledger: Path) -> Mapping[str, Any]:
    """Return what `ledger` states, once it holds the head of the checkpoint beside it.

    Without a ledger that is nothing. Raises `Broken` where any of its lines was edited, or the
    checkpoint is of another ledger.
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
    """The ledger's head that a checkpoint states, read without its tensors."""
    with misfits_are_broken(checkpoint):
        return bytes.fromhex(str(stated_facts(checkpoint)["ledger_head"]))


def _refuse_outside(text: str, path: Path) -> None:
    """Refuse a configuration that names parts from outside, where no ledger vouches for it."""
    _digest(text, path)
    if named := keys_of_outside_parts(text, str(path)):
        raise Refused(
            f"{path.parent} has no ledger that states its configuration: its run had not begun. "
            f"{', '.join(named)} there would import code, which nothing vouches for; delete the "
            "directory, and start the run again"
        )


def _text(path: Path) -> str:
    try:
        return regular.read_text(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def _digest(text: str, path: Path) -> str:
    try:
        return digest(text)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise unreadable(path, error) from None
