"""What an attack is, and what it may know."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from torch import Tensor

State = Mapping[str, "Tensor"]
Identities = NDArray[np.int64]
_LONGEST = 1e15
"""The norm up to which a row can be computed with, as in `defenses.finite`."""


class Knowledge(Enum):
    """What an attacker reads; one who reads honest updates voids the run's epsilon."""

    OWN_DATA = "own data"
    ATTACKERS_DATA = "all attackers' data"
    OWN_UPDATES = "own updates"
    BROADCASTS = "broadcast models"
    ALL_HONEST = "all honest updates"
    RULE = "the aggregation rule"


@dataclass(frozen=True)
class View:
    """The written threat model: what an attack is shown in a `round`, None for what it is not.

    Where a round asks for several messages, it is asked for each by itself; a row has all m numbers
    of a message, which may be more than an update. `byzantine` `[b, m]` are the attackers' rows as
    honest training left them, `honest` `[h, m]` the others', `rule` the aggregation as a callable
    on rows `[n, m]` with the byzantine first. `identities` `[h]` say whose the honest rows are: one
    client has the same number in every round.
    """

    round: int
    byzantine: Tensor
    honest: Tensor | None = None
    rule: Callable[[Tensor], Tensor] | None = None
    identities: Identities | None = None

    def identities_of_usable(self) -> Identities | None:
        """Whose the rows of `usable_honest` are `[u]`; None where that is not shown."""
        if self.honest is None or self.identities is None:
            return None
        whose: Identities = self.identities[_usable(self.honest).cpu().numpy()]
        return whose


class Unarmed(ValueError):
    """The attackers' examples do not hold what the attack takes from them."""


@dataclass(frozen=True)
class Briefing:
    """What one attacker knows when it poisons its examples: labels are below `classes`.

    Its `place` among the attackers is a number from 0. `learned` is what they made of all their
    examples together (`Attack.study`), where the attack declares that they know these.
    """

    classes: int
    place: int = 0
    learned: State = field(default_factory=dict)


class Attack(BaseModel):
    """What byzantine clients do: poison their examples, replace their rows, or both.

    An attack that poisons examples may also go its own way while it trains on them.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    knows: ClassVar[frozenset[Knowledge]] = frozenset()
    """What the threat model has it read."""
    poisons: ClassVar[bool] = False
    """Whether examples are altered before training."""
    steers: ClassVar[bool] = False
    """Whether local steps on poisoned examples go elsewhere than along the direction of others."""

    @property
    def corrupts(self) -> bool:
        """Whether rows are replaced."""
        return False

    @property
    def acts(self) -> bool:
        """Whether it does anything."""
        return self.poisons or self.corrupts

    def unfit(self, shape: tuple[int, ...], numbers: bool) -> str | None:
        """Why examples of this `shape`, `numbers` or tokens, cannot be poisoned; else None."""
        return None

    def labels(self) -> tuple[int, ...]:
        """The labels it aims at, all of which have to exist."""
        return ()

    def study(self, x: Tensor, y: Tensor, classes: int) -> State:
        """What attackers learn from all their examples x `[n, *]` and labels y `[n]` together.

        They do once, before they poison any. Raises `Unarmed` where these are too few.
        """
        return {}

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """One client's examples x `[n, *]` and labels y `[n]` int64, poisoned; not in place."""
        return x, y

    def watch(self, params: Tensor, state: State) -> State:
        """What the attackers remember once the model `params` `[d]` is broadcast to a round."""
        return state

    def steer(self, direction: Tensor, away: Tensor, lr: float, state: State) -> Tensor:
        """The direction `[c, d]` that c attackers descend along in a local step of rate `lr`.

        An honest client takes `direction` `[c, d]`. `away` `[c, d]` is how far their models lie
        from the broadcast one, and `state` what they remember.
        """
        return direction

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        """The rows `[b, m]` to send for `view.byzantine`, and what the attackers remember."""
        return view.byzantine, state

    def targeted(self, x: Tensor, y: Tensor, learned: State) -> tuple[Tensor, Tensor] | None:
        """The test examples that it wants misread, as they are fed in, and the labels it wants.

        The part of them that is read so is its success. None where it has no such aim. `learned`
        is what the attackers made of their own examples (`study`).
        """
        return None


Attack.__class_vars__ |= {"corrupts"}  # a property, which a subclass may set: `corrupts = True`


class NoAttack(Attack):
    """Everybody is honest."""


class UpdateAttack(Attack):
    """An attack that replaces the attackers' rows."""

    knows: ClassVar[frozenset[Knowledge]] = frozenset({Knowledge.OWN_UPDATES})

    @property
    def corrupts(self) -> bool:
        return True


class ReadingAttack(UpdateAttack):
    """An attack that reads all honest updates of the round before it sends: the worst case."""

    knows: ClassVar[frozenset[Knowledge]] = UpdateAttack.knows | {Knowledge.ALL_HONEST}


class FullKnowledge(ReadingAttack):
    """An attack that reads all honest updates, and computes one row for all byzantine clients.

    It may compute one row for each of them, too.
    """

    @abstractmethod
    def hostile(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
        """One row `[m]` that all byzantine clients send, from the honest rows `[h, m]`, h > 0."""

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        honest = usable_honest(view.honest)
        if honest is None:
            return view.byzantine, state
        return self.hostile(honest, view, rng).expand_as(view.byzantine).clone(), state


def usable_honest(honest: Tensor | None) -> Tensor | None:
    """The honest rows `[h, m]` that can be computed with; None where there are none.

    Others have diverged: a rule leaves them out, and so does an attacker who studies them.
    """
    if honest is None:
        return None
    rows = honest[_usable(honest)]
    return rows if len(rows) else None


def _usable(rows: Tensor) -> Tensor:
    """Which of `rows` `[h, m]` can be computed with: `[h]` bool."""
    import torch  # what an attack declares is asked without computing anything

    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms <= _LONGEST
