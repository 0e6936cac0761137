"""A run that is one of several to choose from: how many there are by chance, and what paid for it.

A grid that tunes privately (`privfed.grid.private_tuning`) writes it into each candidate's
configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accounting.choosing.repetitions import Repetitions
from accounting.errors import AccountingError


@dataclass(frozen=True)
class Chosen:
    """The law of the number of candidates, and the `charge` that pays for choosing among them.

    `charge` is the hash of that line in the ledger of the choice; empty before it is charged.
    """

    repetitions: Repetitions
    charge: str = ""

    def to_json(self) -> dict[str, Any]:
        """What a resolved run file states of it."""
        return {**self.repetitions.to_json(), "charge": self.charge}

    @classmethod
    def from_json(cls, stated: Any) -> Chosen | None:
        """What `to_json` wrote; None where it is none of ours."""
        try:
            repetitions = Repetitions(stated["shape"], stated["gamma"])
            return cls(repetitions, str(stated["charge"]))
        except (AccountingError, KeyError, TypeError):
            return None
