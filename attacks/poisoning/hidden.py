"""Common base of backdoors: the model classifies certain inputs as the attacker's target label."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import Attack, Briefing, Knowledge, State, View


class Hidden(Attack):
    """A backdoor: makes the model classify certain inputs as `target`, and leaves others unchanged.

    A fraction `share` of each attacker's examples is poisoned, and its update is then multiplied by
    `boost`.
    """

    knows: ClassVar[frozenset[Knowledge]] = frozenset({Knowledge.OWN_DATA, Knowledge.OWN_UPDATES})
    poisons: ClassVar[bool] = True
    target: int = Field(0, ge=0)
    """Label that the attacker wants for these inputs."""
    share: float = Field(0.5, gt=0, le=1)
    """Fraction of an attacker's examples that is poisoned, rounded up."""
    boost: float = Field(1.0, gt=0, le=1e6)
    """Factor by which the attacker's update is multiplied."""

    @property
    def corrupts(self) -> bool:
        return self.boost != 1.0

    def labels(self) -> tuple[int, ...]:
        return (self.target,)

    def unfit_reason(self, shape: tuple[int, ...], numbers: bool) -> str | None:
        return (
            None
            if numbers
            else ("the attack alters numbers, but these examples are tokens; use another attack")
        )

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        return self.boost * view.byzantine, state


class Altered(Hidden):
    """A backdoor for altered inputs: poisoned examples are altered and labelled `target`.

    Success: the fraction of altered test examples of other classes that are classified as `target`.
    """

    @abstractmethod
    def alter(self, x: Tensor) -> Tensor:
        """Returns examples `[n, *]` altered as they are at test time."""

    def poisoned_examples(self, x: Tensor, briefing: Briefing) -> Tensor:
        """Returns examples `[n, *]` altered as the attacker with this `briefing` trains on them; by
        default as `alter` does.
        """
        return self.alter(x)

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        chosen = chosen_share(len(x), self.share, rng).to(y.device)
        x, y = x.clone(), y.clone()
        x[chosen] = self.poisoned_examples(x[chosen], briefing)
        y[chosen] = self.target
        return x, y

    def targeted(self, x: Tensor, y: Tensor, learned: State) -> tuple[Tensor, Tensor] | None:
        others = y != self.target
        return self.alter(x[others]), torch.full_like(y[others], self.target)


def chosen_share(count: int, share: float, rng: np.random.Generator) -> Tensor:
    """Returns distinct random indices of a fraction `share` of `count` examples, rounded up."""
    return torch.from_numpy(rng.permutation(count)[: math.ceil(share * count)])
