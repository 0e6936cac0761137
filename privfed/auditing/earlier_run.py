"""Whether an earlier run that a ledger counts has spent more since it was counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accounting.errors import AccountingError
from accounting.ledger import Ledger


def went_on(run: Mapping[str, Any]) -> bool:
    """Whether a run that a ledger states as earlier is at hand, with charges beyond those stated.

    `run` holds its path ("run"), its "id" and the "head" that its ledger had.
    """
    try:
        ledger = Ledger.load(Path(str(run["run"])) / "ledger.jsonl")
    except (OSError, AccountingError):
        return False
    return bool(ledger.terms.get("id") == run["id"] and ledger.head().hex() != run["head"])


def uncounted_charges(terms: Mapping[str, Any]) -> Iterator[str]:
    """A problem for each earlier run, stated in a ledger's `terms`, that went on."""
    for run in terms.get("prior", []):
        if went_on(run):
            yield (
                f"{run['run']} was charged more after this run had counted it; what it spent since "
                "is not in this epsilon"
            )
