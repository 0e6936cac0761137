"""The keys of a run file about simulated attackers, for every attack."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from privfed.core.parts import Part


class AttackKeys(Part):
    fraction: float = Field(0.0, ge=0, lt=1)
    """The fraction of all clients that is Byzantine, rounded to a number of clients. If the source
    names its clients, each is drawn independently with this probability instead."""
    selection: Literal["once", "round"] = "once"
    """Whether attackers are drawn "once" for all rounds, or again in each "round"."""
    stage: Literal["auto", "before_bound", "after_bound"] = "auto"
    """Whether attackers' rows are bounded like others' ("before_bound") or not ("after_bound");
    "auto" bounds them unless clients take part in a secure sum themselves."""
    first_round: int = Field(1, ge=1)
    """The first round of the attack; earlier, attackers behave honestly."""
    last_round: int = Field(0, ge=0)
    """The last round of the attack, to measure how long its effect lasts; 0: the
    run's last round."""
    replaces: Literal["messages", "updates"] = "messages"
    """The messages that an attack on updates replaces: all that attackers send in training, in
    every exchange and every part of a row ("messages"), or model updates only."""
    weight: float = Field(1.0, ge=0, le=1e9)
    """The factor by which attackers overstate their number of examples."""
    clip_count: Literal["true", "within", "beyond"] = "true"
    """The indicator that attackers report to adaptive clipping about their rows' norms: the "true"
    one, always "within" the clipping norm, which lowers it, or always "beyond", which raises it."""

    @property
    def false_claims(self) -> bool:
        """Whether attackers report false weights or clip indicators, in addition to their rows."""
        return self.weight != 1.0 or self.clip_count != "true"

    @model_validator(mode="after")
    def _refuse_no_round(self) -> Self:
        if 0 < self.last_round < self.first_round:
            raise ValueError(
                f"attack.last_round is {self.last_round}, but attack.first_round is "
                f"{self.first_round}; raise attack.last_round, or lower attack.first_round"
            )
        return self


def expected_byzantine(declared: int, expected: float) -> int:
    """Returns the number of Byzantine clients in a cohort that a run assumes.

    It is the larger of `declared` and `expected`, rounded up.

    Args:
      declared: the number in the run file (`aggregation.byzantine`).
      expected: the expected number of simulated attackers in a cohort.
    """
    return max(declared, math.ceil(expected - 1e-9))
