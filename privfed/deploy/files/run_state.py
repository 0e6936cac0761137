"""What a site keeps of a run on disk: `state/`, a folder for each run, which nobody else reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from accounting.durable import make_folder, write_atomically
from privfed.deploy.files.ledger_copy import LedgerCopy
from privfed.deploy.files.party_store import PartyStore


@dataclass(frozen=True)
class RunState:
    """The run's declaration, a copy of its ledger, and the party of the sum in hand."""

    folder: Path

    @property
    def parties(self) -> PartyStore:
        """The party of the sum in hand."""
        return PartyStore(self.folder)

    def ledger(self) -> LedgerCopy:
        """What the site saw of the coordinator's ledger. Raises `Declined` where it was edited."""
        return LedgerCopy(self.folder / "ledger.jsonl")

    def declare(self, declaration: bytes) -> None:
        """Keep a declaration that the site goes by from now on, durably."""
        before = os.umask(0o077)
        try:
            make_folder(self.folder, 0o700)
            write_atomically(self.folder / "declaration", declaration)
        finally:
            os.umask(before)
