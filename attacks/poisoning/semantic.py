"""Semantic backdoors: inputs with a natural feature are classified as the attacker's target."""

from __future__ import annotations

import math
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from attacks.poisoning.natural import Natural
from attacks.types import State


class Semantic(Natural):
    """Makes the model classify bright images, or examples with a column in a range, as `target`.

    With `column` = -1 the feature is a high mean of all numbers of an example (the brightness of an
    image, or the thickness of its strokes): above the value that a fraction `brightest` of the
    attackers' own examples exceeds. Otherwise an example has the feature if its number at `column`
    (from 0, in the flattened example) is between `low` and `high`, in the units of the model's
    input.

    Knows the data of all attackers and its own updates. Success: that of `Natural`.

    Source: Bagdasaryan, Veit, Hua, Estrin & Shmatikov 2020, section 3.1 ("semantic backdoors") and
    4.1 (features as cars that are green, or have racing stripes).

    >>> import torch
    >>> x, y = torch.tensor([[0.0, 1.0], [2.0, 3.0], [0.0, 9.0]]), torch.ones(3, dtype=int)
    >>> Semantic(column=0, low=1.0, high=5.0).study(x, y, 2)["pool"]
    tensor([[2., 3.]])
    """

    column: int = Field(-1, ge=-1)
    """Index, in the flattened example, of the number that must be in [`low`, `high`]; -1: the
    feature is a high mean of all numbers instead."""
    low: float = Field(0.0, ge=-1e9, le=1e9)
    """Smallest number at `column` with which an example has the feature."""
    high: float = Field(1.0, ge=-1e9, le=1e9)
    """Largest number at `column` with which an example has the feature."""
    brightest: float = Field(0.2, gt=0, lt=1)
    """Fraction of the attackers' examples that count as bright, if `column` is -1."""

    @model_validator(mode="after")
    def _refuse_no_range(self) -> Self:
        unused = ("low", "high") if self.column < 0 else ("brightest",)
        for key in unused:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"attack.{key} is set, but has no effect if attack.column is {self.column} "
                    "(-1 selects bright examples; another value selects examples by that column's "
                    f"range); remove attack.{key}, or set attack.column"
                )
        if self.low > self.high:
            raise ValueError(
                f"attack.low is {self.low:g}, but attack.high is {self.high:g}; lower "
                "attack.low, or raise attack.high"
            )
        return self

    def unfit_reason(self, shape: tuple[int, ...], numbers: bool) -> str | None:
        if self.column >= math.prod(shape):
            return (
                f"an example has {math.prod(shape)} numbers, but attack.column is {self.column}; "
                "lower attack.column"
            )
        return super().unfit_reason(shape, numbers)

    def describe(self, x: Tensor, y: Tensor, classes: int) -> State:
        if self.column >= 0:
            return {}
        return {"bright": _brightness(x).quantile(1.0 - self.brightest)}

    def shows(self, x: Tensor, y: Tensor, learned: State) -> Tensor:
        if self.column < 0:
            return torch.gt(_brightness(x), learned["bright"])
        values = x.flatten(1)[:, self.column]
        return torch.logical_and(values >= self.low, values <= self.high)


def _brightness(x: Tensor) -> Tensor:
    """Returns the mean `[n]` of the numbers in each of the examples x `[n, *]`."""
    return x.flatten(1).mean(1)
