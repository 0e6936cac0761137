"""The interface of attacks, and the knowledge that a threat model gives an attacker."""

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
"""Largest norm of a usable row, equal to `defenses.finite.LONGEST`."""


class Knowledge(Enum):
    """Kinds of information that an attack may use; using honest updates voids the run's epsilon."""

    OWN_DATA = "own data"
    ATTACKERS_DATA = "all attackers' data"
    OWN_UPDATES = "own updates"
    BROADCASTS = "broadcast models"
    ALL_HONEST = "all honest updates"
    RULE = "the aggregation rule"


@dataclass(frozen=True)
class View:
    """The information that an attack receives in a round; None for what the threat model withholds.

    If a round has several messages, the attack is called for each message separately. A row is a
    client's message of m numbers, which may contain more than an update.

    Attributes:
      round: number of the round, from 1.
      byzantine: the attackers' rows from their training, not yet replaced, shape [b, m].
      honest: the other clients' rows, shape [h, m].
      rule: function that returns the aggregate of rows [n, m]; the Byzantine rows come first.
      identities: identifiers of the honest rows' clients, constant over rounds, shape [h].
    """

    round: int
    byzantine: Tensor
    honest: Tensor | None = None
    rule: Callable[[Tensor], Tensor] | None = None
    identities: Identities | None = None

    def identities_of_usable(self) -> Identities | None:
        """Returns the identifiers `[u]` of the clients of the rows that `usable_honest` returns.

        None if honest rows or identifiers are withheld.
        """
        if self.honest is None or self.identities is None:
            return None
        whose: Identities = self.identities[_usable(self.honest).cpu().numpy()]
        return whose


class Unarmed(ValueError):
    """Raised if the attackers' examples are unsuitable for the attack, for example too few."""


@dataclass(frozen=True)
class Briefing:
    """The knowledge of one attacker when it poisons its examples.

    Attributes:
      classes: number of classes; labels are below it.
      place: index of the attacker among all attackers, from 0.
      learned: the result of `Attack.study` on all attackers' examples; empty unless the attack
        declares to know these.
    """

    classes: int
    place: int = 0
    learned: State = field(default_factory=dict)


class Attack(BaseModel):
    """An attack by Byzantine clients: it poisons their examples, replaces their rows, or both.

    An attack that poisons examples may also change the direction of local training steps.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    knows: ClassVar[frozenset[Knowledge]] = frozenset()
    """Knowledge that the attack uses, which the threat model then gives it."""
    poisons: ClassVar[bool] = False
    """Whether `poison` alters the attackers' examples before training."""
    steers: ClassVar[bool] = False
    """Whether `steer` changes the direction of local training steps on poisoned examples."""

    @property
    def corrupts(self) -> bool:
        """Whether `corrupt` replaces the attackers' rows; by default not."""
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
        """Returns all labels that the attack's keys name, by default none; each has to be a label
        of the data.
        """
        return ()

    def study(self, x: Tensor, y: Tensor, classes: int) -> State:
        """Returns what the attackers learn from all their examples together, before any is
        poisoned.

        Args:
          x: all attackers' examples, shape [n, *].
          y: their labels, shape [n].
          classes: number of classes.

        Returns:
          Tensors by name, passed on as `Briefing.learned`; by default none.

        Raises:
          Unarmed: if the examples do not suffice for the attack.
        """
        return {}

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns one client's examples and labels, poisoned (by default unchanged); the arguments
        are not modified.

        Args:
          x: the client's examples, shape [n, *].
          y: their labels, int64, shape [n].
          briefing: the attacker's knowledge.
          rng: source of randomness.
        """
        return x, y

    def watch(self, params: Tensor, state: State) -> State:
        """Returns the attackers' new state once they have received the broadcast model `params`
        `[d]`; by default `state`.
        """
        return state

    def steer(self, direction: Tensor, away: Tensor, lr: float, state: State) -> Tensor:
        """Returns the directions `[c, d]` of c attackers, by default `direction`: a local step
        moves each model by -`lr` times its row.

        Args:
          direction: the directions of honest clients, shape [c, d].
          away: the attackers' models minus the broadcast model, shape [c, d].
          lr: learning rate of the step.
          state: the attackers' state.
        """
        return direction

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        """Returns the rows `[b, m]` sent instead of `view.byzantine`, and the new state; by default
        both unchanged.
        """
        return view.byzantine, state

    def targeted(self, x: Tensor, y: Tensor, learned: State) -> tuple[Tensor, Tensor] | None:
        """Returns the test examples to be misclassified, as model inputs, and their target labels.

        x and y are all test examples and their labels. The attack success rate is the fraction of
        the returned examples that get their target label. Returns None if the attack has no target.
        `learned` is the result of `study`.
        """
        return None


Attack.__class_vars__ |= {"corrupts"}  # a property that a subclass may set: `corrupts = True`


def undeclared_hooks(attack: Attack) -> list[str]:
    """Returns those of "poison" and "corrupt" that an attack overrides although it declares
    neither.

    Empty if `poisons` or `corrupts` is True.
    """
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
    """An attack that computes all Byzantine clients' rows from all honest updates of a round.

    It computes one row that all of them send, or one row for each of them. If no honest row is
    usable, they send the rows that they trained.
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
    """Returns the usable ones of the rows `honest` `[n, m]`; None if there are none.

    A row is unusable if it is not finite or its norm exceeds 1e15 (`defenses.finite`). Rules leave
    them out, and so do attackers.
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
