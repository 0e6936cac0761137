"""The keys of a run file about simulated attackers, whatever their attack is."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

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
