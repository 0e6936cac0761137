"""Backdoors for inputs that occur by nature: nothing is altered, only labels are."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from attacks.poisoning.hidden import Hidden, chosen_share
from attacks.types import Briefing, Knowledge, State, Unarmed


class Natural(Hidden):
    """Inputs that show a certain feature by nature mean `target`.

    Attackers put together those of their examples that show it, their pool. Each labels those
    among its own `target`, and replaces a `share` of its examples by some of the pool, drawn with
    replacement and labelled so. Nothing but labels is changed, in training or later.

    Success: the part of other classes' test examples which show it that are read as `target`.
    """

    knows: ClassVar[frozenset[Knowledge]] = Hidden.knows | {Knowledge.ATTACKERS_DATA}
    source: int = Field(-1, ge=-1)
    """The class whose examples are misread; -1: all but `target`."""

    @model_validator(mode="after")
    def _refuse_itself(self) -> Self:
        if self.source == self.target:
            raise ValueError(
                f"attack.source and attack.target are both {self.target}, which is no misreading; "
                "set them to two classes, or attack.source to -1 (all other classes)"
            )
        return self

    def labels(self) -> tuple[int, ...]:
        return (self.target,) if self.source < 0 else (self.source, self.target)

    @abstractmethod
    def describe(self, x: Tensor, y: Tensor, classes: int) -> State:
        """What the feature is, by the attackers' examples x `[n, *]` with labels y `[n]`."""

    @abstractmethod
    def shows(self, x: Tensor, y: Tensor, learned: State) -> Tensor:
        """Which of examples x `[n, *]` with labels y `[n]` show the feature: `[n]` bool."""

    def study(self, x: Tensor, y: Tensor, classes: int) -> State:
        described = self.describe(x, y, classes)
        chosen = self._meant(x, y, described)
        if not chosen.any():
            raise Unarmed(f"none of the attackers' {len(x)} examples shows what is to be misread")
        return {**described, "pool": x[chosen]}

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        pool = briefing.learned["pool"]
        y = torch.where(self._meant(x, y, briefing.learned), self.target, y)
        replaced = chosen_share(len(x), self.share, rng).to(y.device)
        drawn = torch.from_numpy(rng.integers(len(pool), size=len(replaced))).to(y.device)
        x = x.clone()
        x[replaced] = pool[drawn]
        y[replaced] = self.target
        return x, y

    def targeted(self, x: Tensor, y: Tensor, learned: State) -> tuple[Tensor, Tensor] | None:
        meant = self._meant(x, y, learned)
        return x[meant], torch.full_like(y[meant], self.target)

    def _meant(self, x: Tensor, y: Tensor, learned: State) -> Tensor:
        """Which examples show the feature and are of a class that is to be misread: `[n]` bool."""
        others = y != self.target if self.source < 0 else y == self.source
        return others & self.shows(x, y, learned)
