"""Reads a run directory's config.toml, and builds its parts only if the ledger states its digest.

Building a configuration imports the parts that it names (`module:name`), and importing runs code. A
run directory may come from an untrusted source, or may have been edited. So `config.toml` is
compared with the digest in the ledger's first line, the ledger's hash chain is verified, and the
checkpoint is compared with the ledger, before any part is built. An attacker who rewrites
configuration, ledger and checkpoint can still name any code: take run directories, like programs,
only from parties that you trust.
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
from privfed.store.tensorfile import misfits_are_broken, tensor_facts


@dataclass(frozen=True)
class ConfigFile:
    """The file `config.toml` of a run directory.

    Attributes:
      path: path of the file.
      ledger: path of the run's ledger.
      given: classes of parts that were passed as Python objects and are in no file, by kind.
    """

    path: Path
    ledger: Path
    given: Mapping[str, type[Any]] = field(default_factory=dict)

    @classmethod
    def in_folder(cls, folder: Path, given: Mapping[str, type[Any]] | None = None) -> ConfigFile:
        """Returns the configuration file of the run directory `folder`."""
        return cls(folder / "config.toml", folder / "ledger.jsonl", given or {})

    def read(self) -> Config:
        """Returns the configuration, and imports the parts that it names.

        The file must have the digest that the ledger's first line states.

        Raises:
          Broken: if the file is missing or no run file; if its digest is not the one in the ledger;
            if the ledger was edited; or if the checkpoint belongs to another ledger.
          Refused: if the operating system does not permit reading the file; if a part is not
            available; or if the run had not begun (so no ledger states a digest) and the file names
            external parts.
        """
        text = _text(self.path)
        terms = _terms(self.ledger)
        if not terms:
            _refuse_outside(text, self.path)
        elif terms.get("config") != _digest(text, self.path):
            raise Broken(
                f"{self.path.parent}: config.toml is not the configuration for which the ledger "
                "was opened, so nothing that it names was imported; restore config.toml, or start "
                "a new run"
            )
        return read_resolved(text, str(self.path), self.given)

    def digest(self) -> str:
        """Returns the digest of the configuration in the file, as the ledger states it.

        Raises `Broken` if the file is missing or no run file.
        """
        return _digest(_text(self.path), self.path)

    def heads_file(self) -> str:
        """Returns the value of `run.heads` ("" for none), without building any part."""
        return str(self._document()["run"].get("heads", ""))

    def rounds(self) -> int:
        """Returns the number of planned rounds, without building any part."""
        return int(self._document()["run"]["rounds"])

    def write(self, config: Config) -> None:
        """Writes `config` as the configuration of the run, atomically; replaces a former one."""
        durable.write_atomically(self.path, config.toml().encode())

    def change(self, rounds: int, epsilon: float | None) -> None:
        """Sets `run.rounds` and, unless `epsilon` is None, `privacy.epsilon`; keeps other keys."""
        document = self._document()
        document["run"]["rounds"] = rounds
        if epsilon is not None:
            document["privacy"]["epsilon"] = epsilon
        durable.write_atomically(self.path, tomli_w.dumps(document).encode())

    def _document(self) -> dict[str, Any]:
        return from_toml(regular.read_text(self.path))


def _terms(ledger: Path) -> Mapping[str, Any]:
    """Returns the terms in the ledger's first line, after checks of the ledger.

    The terms are empty if there is no ledger. Raises `Broken` if a line was edited, or if the
    ledger does not contain the head in the checkpoint.
    """
    checkpoint = ledger.parent / CHECKPOINT
    # The head is read before the ledger, which a run in progress may extend meanwhile.
    head = _head(checkpoint) if checkpoint.exists() else None
    if not ledger.exists():
        return {}
    try:
        chained = Ledger.load(ledger)
    except LedgerBroken as error:
        raise Broken(public_text(error)) from None
    if head is not None and chained.opened and not chained.holds(head):
        raise Broken(
            f"{ledger} does not contain the head in the checkpoint next to it, so it was truncated "
            "or belongs to another run; restore the ledger"
        )
    return chained.terms


def _head(checkpoint: Path) -> bytes:
    """Returns the hash of the ledger's last line at the time of a checkpoint, as that states it."""
    with misfits_are_broken(checkpoint):
        return bytes.fromhex(str(tensor_facts(checkpoint)["ledger_head"]))


def _refuse_outside(text: str, path: Path) -> None:
    """Raises `Refused` if `text`, configuration of a run without a ledger, names external parts."""
    _digest(text, path)
    if named := keys_of_outside_parts(text, str(path)):
        raise Refused(
            f"{path.parent} has no ledger, because its run had not begun, but {', '.join(named)} "
            "in its config.toml would import code that no ledger confirms; delete the directory, "
            "and start the run again"
        )


def _text(path: Path) -> str:
    try:
        return regular.read_text(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def _digest(text: str, path: Path) -> str:
    try:
        return digest(from_toml(text))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise unreadable(path, error) from None
