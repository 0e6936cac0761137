"""Where a tuning lies in the folder of its grid: what anybody may read, and what is private."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from privfed.store.private_key import PrivateKey


@dataclass(frozen=True)
class Places:
    """Where a tuning lies in the folder `grid`. Everything but `best` and `ledger` is private."""

    grid: Path

    @property
    def best(self) -> Path:
        """The directory of the run that is released."""
        return self.grid / "best"

    @property
    def ledger(self) -> Path:
        """The ledger with the one charge; not called as a run's is, since this folder is none."""
        return self.grid / "tuning.jsonl"

    @property
    def private(self) -> Path:
        """The folder that nobody else may read.

        The candidates lie one level further down: who may not read a folder can still see how many
        folders are in it.
        """
        return self.grid / "private"

    @property
    def candidates(self) -> Path:
        """A folder for each candidate."""
        return self.private / "candidates"

    @property
    def key(self) -> PrivateKey:
        """The secret that all draws follow from."""
        return PrivateKey(self.private / "key")

    @property
    def log(self) -> Path:
        """What candidates print, and why they were cut off: it would tell how many there are."""
        return self.private / "log.txt"
