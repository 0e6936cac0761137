"""What a run's checkpoint states about itself, read without torch or the run's model.

An audit asks for the round and the ledger's head only; `privfed.store.checkpoint` loads the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.ledger import terms_at
from privfed.models.form import Form
from privfed.store.lineage import Lineage
from privfed.store.tensorfile import checked_facts, misfits_are_broken, unpack


@dataclass(frozen=True)
class CheckpointFile:
    """The file `checkpoint.safetensors` at `path`, of the run whose ledger lies at `ledger`."""

    path: Path
    ledger: Path

    def exists(self) -> bool:
        """Whether the run has written a checkpoint."""
        return self.path.exists()

    def round(self) -> int:
        """The round that the checkpoint stands at; 0 where there is none. Raises `Broken`."""
        if not self.exists():
            return 0
        with misfits_are_broken(self.path):
            return int(checked_facts(self.path)["round"])

    def head(self) -> bytes:
        """The ledger's head that the checkpoint carries. Raises `Broken` where there is none."""
        with misfits_are_broken(self.path):
            return bytes.fromhex(str(checked_facts(self.path)["ledger_head"]))

    def form(self) -> Form | None:
        """What an example looks like, by the checkpoint; None where an older version wrote it."""
        stated = unpack(self.path)[1].get("form")
        with misfits_are_broken(self.path):  # which pydantic's errors are, too
            return None if stated is None else Form.model_validate(stated, strict=False)

    def lineage(self) -> dict[str, Any]:
        """What made the model of the checkpoint: see `privfed.store.lineage`."""
        stated = unpack(self.path)[1].get("lineage")
        with misfits_are_broken(self.path):
            if stated is not None:
                return Lineage.from_json(stated).to_json()
        return self.lineage_at(self.head())

    def lineage_at(self, head: bytes) -> dict[str, Any]:
        """What made the model at the ledger's `head`, this run included, as the ledger states it.

        With it a copy of the checkpoint is recognised wherever it lies.
        """
        terms = terms_at(self.ledger)
        return Lineage.of_run(terms, head.hex()).to_json() if terms else {}
