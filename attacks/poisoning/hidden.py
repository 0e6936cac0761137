"""What backdoors have in common: certain inputs mean what the attacker wants."""

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
    """An attack that makes certain inputs mean `target`, and leaves all others alone.

    A `share` of an attacker's examples teaches it, and its update is then multiplied by `boost`.
    """

    knows: ClassVar[frozenset[Knowledge]] = frozenset({Knowledge.OWN_DATA, Knowledge.OWN_UPDATES})
    poisons: ClassVar[bool] = True
    target: int = Field(0, ge=0)
    """The label that the backdoor means."""
    share: float = Field(0.5, gt=0, le=1)
    """The part of an attacker's examples that is poisoned."""
    boost: float = Field(1.0, gt=0, le=1e6)
    """By what the update is multiplied."""

    @property
    def corrupts(self) -> bool:
        return self.boost != 1.0

    def labels(self) -> tuple[int, ...]:
        return (self.target,)

    def unfit(self, shape: tuple[int, ...], numbers: bool) -> str | None:
        return None if numbers else "it works on numbers, and these examples are tokens"

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        return self.boost * view.byzantine, state


class Altered(Hidden):
    """A backdoor for inputs that are altered: examples are, and are labelled `target`.

    Success: the part of other classes' test examples, altered, that are read as `target`.
    """

    @abstractmethod
    def alter(self, x: Tensor) -> Tensor:
        """Examples `[n, *]` as the attacker shows them."""

    def taught(self, x: Tensor, briefing: Briefing) -> Tensor:
        """Examples `[n, *]` as the attacker of this `briefing` trains on them."""
        return self.alter(x)

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        chosen = chosen_share(len(x), self.share, rng).to(y.device)
        x, y = x.clone(), y.clone()
        x[chosen] = self.taught(x[chosen], briefing)
        y[chosen] = self.target
        return x, y

    def targeted(self, x: Tensor, y: Tensor, learned: State) -> tuple[Tensor, Tensor] | None:
        others = y != self.target
        return self.alter(x[others]), torch.full_like(y[others], self.target)


def chosen_share(count: int, share: float, rng: np.random.Generator) -> Tensor:
    """Places of a `share` of `count` examples, rounded up, drawn at random."""
    return torch.from_numpy(rng.permutation(count)[: math.ceil(share * count)])
