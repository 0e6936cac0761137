"""Backdoors for naturally occurring inputs: training examples are relabelled and repeated, never
altered.
"""

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
    """Makes the model classify as `target` the inputs that naturally show a certain feature.

    The targeted examples show the feature and are of class `source` (-1: of any class but
    `target`). Attackers collect their own in a common pool. Each attacker changes their labels to
    `target`. It also replaces a fraction `share` of its examples by examples drawn from the pool,
    with replacement, labelled `target`. No input is altered, in training or at test time.

    Success: the fraction of targeted test examples that are classified as `target`.
    """

    knows: ClassVar[frozenset[Knowledge]] = Hidden.knows | {Knowledge.ATTACKERS_DATA}
    source: int = Field(-1, ge=-1)
    """Class whose examples are to be misclassified; -1: all except `target`."""

    @model_validator(mode="after")
    def _refuse_itself(self) -> Self:
        if self.source == self.target:
            raise ValueError(
                f"attack.source and attack.target are both {self.target}, but then no label would "
                "change; set them to two classes, or attack.source to -1 (all other classes)"
            )
        return self

    def labels(self) -> tuple[int, ...]:
        return (self.target,) if self.source < 0 else (self.source, self.target)

    @abstractmethod
    def describe(self, x: Tensor, y: Tensor, classes: int) -> State:
        """Returns tensors that define the feature, from all attackers' examples x and their labels
        y.

        `shows` receives them in `learned`.
        """

    @abstractmethod
    def shows(self, x: Tensor, y: Tensor, learned: State) -> Tensor:
        """Returns a mask `[n]` bool of the examples x `[n, *]` with labels y `[n]` that show the
        feature.
        """

    def study(self, x: Tensor, y: Tensor, classes: int) -> State:
        described = self.describe(x, y, classes)
        chosen = self._meant(x, y, described)
        if not chosen.any():
            raise Unarmed(
                f"none of the attackers' {len(x)} examples shows the feature and is of a class "
                "that is to be misclassified"
            )
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
        """Returns a mask `[n]` bool of the examples that are to be misclassified as `target`.

        They show the feature, and are of class `source`, or of any class but `target`.
        """
        others = y != self.target if self.source < 0 else y == self.source
        return others & self.shows(x, y, learned)
