"""The values that a plan solves for, in addition to the keys of a run file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from accounting.choosing.repetitions import Repetitions
from accounting.errors import AccountingError


@dataclass(frozen=True)
class Chosen:
    """The record that a run is a candidate of private tuning, which draws their number at random.

    A grid that tunes privately (`privfed.grid.private_tuning`) writes this record into each
    candidate's configuration.

    `repetitions` is the distribution of the number of candidates. `charge` is the hash of the line
    in the tuning's ledger that charges the choice among them; "" before the choice.
    """

    repetitions: Repetitions
    charge: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the entries for a resolved run file, which `from_json` reads."""
        return {**self.repetitions.to_json(), "charge": self.charge}

    @classmethod
    def from_json(cls, stated: Any) -> Chosen | None:
        """Returns the object of an output of `to_json`; None if `stated` is no such output."""
        try:
            repetitions = Repetitions(stated["shape"], stated["gamma"])
            return cls(repetitions, str(stated["charge"]))
        except (AccountingError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Resolved:
    """The values that a plan solved for, as stored in a resolved run file (`Config`)."""

    noise_multiplier: float | None = None
    admitted: int = 0
    chosen: Chosen | None = None
    evaluation_admitted: int = 0
    auto: str = ""
    """The keys that were "auto", and the examples from which their values were chosen."""

    def to_json(self) -> dict[str, Any]:
        """Returns the entries for a resolved run file; unset values are left out.

        A noise multiplier of 0 is an entry; the other values are unset if 0 or empty.
        """
        chosen = self.chosen.to_json() if self.chosen else None
        stated = {
            "noise_multiplier": self.noise_multiplier,
            "admitted": self.admitted or None,
            "evaluation_admitted": self.evaluation_admitted or None,
            "chosen": chosen,
            "auto": self.auto or None,
        }
        return {key: value for key, value in stated.items() if value is not None}

    @classmethod
    def read(cls, stated: Any) -> Resolved:
        """Returns the values in `stated`, which a run file has under "resolved".

        Unknown entries and invalid values are ignored.
        """
        kinds = {"noise_multiplier": float, "admitted": int, "evaluation_admitted": int}
        stated = stated if isinstance(stated, dict) else {}
        usable = {k: stated[k] for k, of in kinds.items() if type(stated.get(k)) is of}
        usable = {k: value for k, value in usable.items() if 0 <= value < math.inf}
        auto = stated.get("auto", "")
        return cls(
            **usable,
            chosen=Chosen.from_json(stated.get("chosen")),
            auto=auto if isinstance(auto, str) else "",
        )
