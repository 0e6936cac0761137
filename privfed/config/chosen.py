"""A run that is one of several candidates of a charged choice, whose number is random.

A grid that tunes privately (`privfed.grid.private_tuning`) writes this record into each candidate's
configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accounting.choosing.repetitions import Repetitions
from accounting.errors import AccountingError


@dataclass(frozen=True)
class Chosen:
    """The distribution of the number of candidates, and the `charge` for choosing among them.

    `charge` is the hash of that line in the ledger of the choice; empty before it is charged.
    """

    repetitions: Repetitions
    charge: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the entries of a resolved run file."""
        return {**self.repetitions.to_json(), "charge": self.charge}

    @classmethod
    def from_json(cls, stated: Any) -> Chosen | None:
        """Reads an output of `to_json`; None if `stated` is not one."""
        try:
            repetitions = Repetitions(stated["shape"], stated["gamma"])
            return cls(repetitions, str(stated["charge"]))
        except (AccountingError, KeyError, TypeError):
            return None
