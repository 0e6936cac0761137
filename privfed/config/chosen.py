"""A run that is one of several to choose from: how many there are by chance, and what paid for it.

A grid that tunes privately (`privfed.grid.private_tuning`) writes it into each candidate's
configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from accounting.choosing.repetitions import Repetitions
from accounting.errors import AccountingError
from privfed.core.parts import Part


class AttackKeys(Part):
    fraction: float = Field(0.0, ge=0, lt=1)
    """The part of all clients that is byzantine, to the nearest whole client."""
    selection: Literal["once", "round"] = "once"
    """Whether the same clients attack all along ("once"), or others in each round."""
    stage: Literal["auto", "before_bound", "after_bound"] = "auto"
    """Whether attackers' rows are bounded like others': "auto" is so without a secure sum."""
    first_round: int = Field(1, ge=1)
    """The first round of the attack; before it attackers are like others."""
    last_round: int = Field(0, ge=0)
    """The last round of the attack, to see how long it lasts; 0: that of the run."""
    replaces: Literal["messages", "updates"] = "messages"
    """What an attack on updates replaces: all that attackers send in training, every exchange and
    every part of a row ("messages"), or model updates alone."""
    weight: float = Field(1.0, ge=0, le=1e9)
    """How many times their examples attackers claim to hold."""
    clip_count: Literal["true", "within", "beyond"] = "true"
    """What attackers tell adaptive clipping of their norms, true or not: "within" the clip drives
    it down, "beyond" drives it up."""

    @property
    def lies(self) -> bool:
        """Whether attackers claim what is not so, whatever their rows are."""
        return self.weight != 1.0 or self.clip_count != "true"

    @model_validator(mode="after")
    def _refuse_no_round(self) -> Self:
        if 0 < self.last_round < self.first_round:
            raise ValueError(
                f"attack.last_round is {self.last_round}, before attack.first_round, "
                f"{self.first_round}; raise it, or lower that"
            )
        return self


def expected_hostile(declared: int, expected: float) -> int:
    """How many clients are taken to be hostile: as `declared`, and no fewer than are `expected`."""
    return max(declared, math.ceil(expected - 1e-9))


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
