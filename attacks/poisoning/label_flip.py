"""An attack that trains on wrong labels."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from attacks.types import Attack, Briefing, Knowledge, State


class LabelFlip(Attack):
    """Trains on examples with wrong labels.

    With "all", label y becomes classes - 1 - y. With "one", label `source` becomes `target`, and
    success is the fraction of test examples of `source` that are classified as `target`.

    Each attacker knows its own data. Source: Fang, Cao, Jia & Gong 2020, section 5.1; Tolpegin et
    al. 2020.

    >>> import torch, numpy
    >>> y = torch.tensor([0, 1, 9])
    >>> LabelFlip().poison(torch.zeros(3, 1), y, Briefing(10), numpy.random.default_rng(0))[1]
    tensor([9, 8, 0])
    """

    knows: ClassVar[frozenset[Knowledge]] = frozenset({Knowledge.OWN_DATA})
    poisons: ClassVar[bool] = True
    flip: Literal["all", "one"] = "all"
    """Kind of flip: "all" replaces label y by classes - 1 - y; "one" replaces `source` by
    `target`."""
    source: int = Field(1, ge=0)
    """With "one": the label that is replaced."""
    target: int = Field(7, ge=0)
    """With "one": the label that replaces `source`."""

    @model_validator(mode="after")
    def _refuse_itself(self) -> Self:
        if self.flip == "one" and self.source == self.target:
            raise ValueError(
                f"attack.source and attack.target are both {self.target}, but a flip changes "
                "labels; set them to two classes"
            )
        return self

    def labels(self) -> tuple[int, ...]:
        return (self.source, self.target) if self.flip == "one" else ()

    def poison(
        self, x: Tensor, y: Tensor, briefing: Briefing, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        if self.flip == "all":
            return x, torch.where(y >= 0, briefing.classes - 1 - y, y)
        return x, torch.where(y == self.source, self.target, y)

    def targeted(self, x: Tensor, y: Tensor, learned: State) -> tuple[Tensor, Tensor] | None:
        if self.flip == "all":
            return None
        of_source = y == self.source
        return x[of_source], torch.full_like(y[of_source], self.target)
