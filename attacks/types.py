"""Interface of attacks, and the attacker's knowledge."""

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
"""Largest norm of a usable row, as in `defenses.finite`."""


class Knowledge(Enum):
    """Information that an attacker reads; reading honest updates voids the run's epsilon."""

    OWN_DATA = "own data"
    ATTACKERS_DATA = "all attackers' data"
    OWN_UPDATES = "own updates"
    BROADCASTS = "broadcast models"
    ALL_HONEST = "all honest updates"
    RULE = "the aggregation rule"


@dataclass(frozen=True)
class View:
    """The threat model: the information that an attack receives in a round; None if withheld.

    If a round has several messages, the attack is called for each message separately. A row has all
    m numbers of a message, which may contain more than an update.

    Attributes:
      round: number of the round.
      byzantine: the attackers' rows after honest training, shape [b, m].
      honest: the other clients' rows, shape [h, m].
      rule: the aggregation of rows [n, m], the Byzantine ones first.
      identities: identifiers of the honest rows' clients, constant over rounds, shape [h].
    """

    round: int
    byzantine: Tensor
    honest: Tensor | None = None
    rule: Callable[[Tensor], Tensor] | None = None
    identities: Identities | None = None

    def identities_of_usable(self) -> Identities | None:
        """Returns the identities `[u]` of the rows of `usable_honest`; None if withheld."""
        if self.honest is None or self.identities is None:
            return None
        whose: Identities = self.identities[_usable(self.honest).cpu().numpy()]
        return whose


class Unarmed(ValueError):
    """Raised if the attackers' examples are unsuitable for the attack, for example too few."""


@dataclass(frozen=True)
class Briefing:
    """Knowledge of one attacker when it poisons its examples.

    Attributes:
      classes: number of classes; labels are below it.
      place: number of the attacker among the attackers, from 0.
      learned: the result of `Attack.study` on the attackers' joint examples, if the attack declares
        this knowledge.
    """

    classes: int
    place: int = 0
    learned: State = field(default_factory=dict)


class Attack(BaseModel):
    """An attack by Byzantine clients: poisons examples, replaces rows, or both.

    An attack that poisons examples may also change the direction of local training steps.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    knows: ClassVar[frozenset[Knowledge]] = frozenset()
    """Knowledge that the threat model gives the attack."""
    poisons: ClassVar[bool] = False
    """Whether examples are altered before training."""
    steers: ClassVar[bool] = False
    """Whether local steps on poisoned examples take a direction other than the honest one."""

    @property
    def corrupts(self) -> bool:
        """Whether the attack replaces the attackers' rows."""
        return False

    @property
    def acts(self) -> bool:
        """Whether the attack poisons examples or replaces rows."""
        return self.poisons or self.corrupts

    def unfit_reason(self, shape: tuple[int, ...], numbers: bool) -> str | None:
        """Returns the reason why examples are unsuitable for the attack; None if they are suitable.

        Args:
          shape: shape of one example.
          numbers: whether examples are numbers; otherwise they are tokens.
        """
        return None

    def labels(self) -> tuple[int, ...]:
        """Returns all labels that the attack names as source or target; each has to exist."""
        return ()

    def study(self, x: Tensor, y: Tensor, classes: int) -> State:
        """Returns the attackers' knowledge from all their examples, before any is poisoned.

        Args:
          x: all attackers' examples, shape [n, *].
          y: their labels, shape [n].
          classes: number of classes.

        Raises:
          Unarmed: if the examples do not suffice for the attack.
        """
        return {}

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns one client's examples and labels, poisoned; the arguments are not modified.

        Args:
          x: the client's examples, shape [n, *].
          y: their labels, int64, shape [n].
          briefing: the attacker's knowledge.
          rng: source of randomness.
        """
        return x, y

    def watch(self, params: Tensor, state: State) -> State:
        """Returns the attackers' state after they have seen the broadcast model `params` `[d]`."""
        return state

    def steer(self, direction: Tensor, away: Tensor, lr: float, state: State) -> Tensor:
        """Returns the directions `[c, d]` along which c attackers descend in a local step.

        Args:
          direction: the directions of honest clients, shape [c, d].
          away: differences of the attackers' models from the broadcast one, shape [c, d].
          lr: learning rate of the step.
          state: the attackers' state.
        """
        return direction

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        """Returns the rows `[b, m]` sent instead of `view.byzantine`, and the new state."""
        return view.byzantine, state

    def targeted(self, x: Tensor, y: Tensor, learned: State) -> tuple[Tensor, Tensor] | None:
        """Returns the test examples to be misclassified (model inputs), and their target labels.

        The attack success rate is the fraction of these examples that get their target label. None
        if the attack has no target. `learned` is the result of `study`.
        """
        return None


Attack.__class_vars__ |= {"corrupts"}  # a property that a subclass may set: `corrupts = True`


def undeclared_hooks(attack: Attack) -> list[str]:
    """Returns the hooks "poison" and "corrupt" that an attack overrides, if it declares neither."""
    kind, hooks = type(attack), [] if attack.acts else ["poison", "corrupt"]
    return [hook for hook in hooks if getattr(kind, hook) is not getattr(Attack, hook)]


class NoAttack(Attack):
    """No attack: all clients are honest."""


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
    """An attack that reads all honest updates and computes the rows of all Byzantine clients.

    It computes one row that all of them send, or one row for each of them.
    """

    @abstractmethod
    def malicious_row(self, honest: Tensor, view: View, rng: np.random.Generator) -> Tensor:
        """Returns the row `[m]` that all Byzantine clients send, or their rows `[b, m]`.

        `honest` `[h, m]`, h > 0, are the usable honest rows.
        """

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        honest = usable_honest(view.honest)
        if honest is None:
            return view.byzantine, state
        return self.malicious_row(honest, view, rng).expand_as(view.byzantine).clone(), state


def usable_honest(honest: Tensor | None) -> Tensor | None:
    """Returns the usable honest rows `[h, m]`; None if there are none.

    Unusable rows are not finite or too long (`defenses.finite`). Rules leave them out, and so do
    attackers.
    """
    if honest is None:
        return None
    rows = honest[_usable(honest)]
    return rows if len(rows) else None


def _usable(rows: Tensor) -> Tensor:
    """Returns a mask `[h]` bool of the usable `rows` `[h, m]`."""
    import torch  # imported here: declarations are read without torch

    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms <= _LONGEST
