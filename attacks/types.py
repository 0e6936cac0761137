"""What an attack is, and what it may know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from torch import Tensor

State = Mapping[str, Tensor]


class Knowledge(Enum):
    """What an attacker reads. One who reads honest updates voids the run's epsilon."""

    OWN_DATA = "own data"
    OWN_UPDATES = "own updates"
    ALL_HONEST = "all honest updates"
    RULE = "the aggregation rule"


@dataclass(frozen=True)
class View:
    """The written threat model: what an attack is shown, None where it is shown nothing.

    `own` `[b, m]` are the byzantine clients' rows as honest training left them, `honest` `[h, m]`
    the others', `rule` the aggregation as a callable on rows.
    """

    round: int
    own: Tensor
    honest: Tensor | None = None
    rule: Callable[[Tensor], Tensor] | None = None


class UpdateAttack(Protocol):
    """Replaces the byzantine clients' rows."""

    knows: frozenset[Knowledge]

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        """The rows `[b, m]` to send instead, and the attack's next state."""
        ...


class DataAttack(Protocol):
    """Poisons a byzantine client's examples, before training."""

    def poison(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]: ...
