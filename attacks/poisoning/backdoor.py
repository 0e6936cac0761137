"""Backdoors: inputs that only the attacker shows make the model say what the attacker wants."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import Attack, Knowledge, State, View


class Hidden(Attack):
    """An attack by examples of the attacker's own, a `share` of them altered and labelled `target`.

    Its update is then multiplied by `boost`.
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
        return None if numbers else "it alters numbers, and these examples are tokens"

    @abstractmethod
    def alter(self, x: Tensor) -> Tensor:
        """Examples `[n, *]` as the attacker shows them."""

    def poison(
        self, x: Tensor, y: Tensor, classes: int, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(rng.permutation(len(x))[: math.ceil(self.share * len(x))])
        chosen = chosen.to(y.device)
        x, y = x.clone(), y.clone()
        x[chosen] = self.alter(x[chosen])
        y[chosen] = self.target
        return x, y

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        return self.boost * view.byzantine, state

    def targeted(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        others = y != self.target
        return self.alter(x[others]), torch.full_like(y[others], self.target)


class Backdoor(Hidden):
    """A patch of `size` x `size` bright pixels means `target` (BadNets), and updates are boosted.

    The patch, of brightness `value`, lies in the last corner of images `[*, height, width]`, or of
    flat ones that are square; of other examples it is the last `size`^2 numbers. A `boost` of
    cohort size over attackers makes their model replace the global one.

    Knows its own data and updates. Success: the part of other classes' test examples with a patch
    that are read as `target`.

    Source: Gu, Dolan-Gavitt & Garg 2017 (the trigger); Bagdasaryan, Veit, Hua, Estrin & Shmatikov
    2020, equation 3 (model replacement).

    >>> import torch
    >>> Backdoor(size=1).alter(torch.zeros(1, 2, 2))
    tensor([[[0., 0.],
             [0., 1.]]])
    """

    size: int = Field(2, ge=1, le=100)
    """The side of the patch, in pixels."""
    value: float = Field(1.0, ge=-1e6, le=1e6)
    """The brightness of the patch."""

    def unfit(self, shape: tuple[int, ...], numbers: bool) -> str | None:
        if self.size**2 >= math.prod(shape):
            return f"a patch of {self.size} x {self.size} covers all {math.prod(shape)} numbers"
        return super().unfit(shape, numbers)

    def alter(self, x: Tensor) -> Tensor:
        stamped = x.clone()
        pixels = math.prod(x.shape[1:])
        side = math.isqrt(pixels)
        if x.dim() > 2:
            stamped[..., -self.size :, -self.size :] = self.value
        elif side * side == pixels and side > self.size:
            stamped.view(len(x), side, side)[:, -self.size :, -self.size :] = self.value
        else:
            stamped[:, -(self.size**2) :] = self.value
        return stamped


class EdgeCase(Hidden):
    """Inputs that no honest client has mean `target`: examples seen in negative.

    Every number x becomes `low` + `high` - x: still a natural input, not a stamped one, far out in
    the tail of what models are trained on, so that honest updates do not correct it.

    Knows its own data and updates. Success: the part of other classes' test examples, in negative,
    that are read as `target`.

    Source: Wang, Sreenivasan, Rajput, Vishwakarma, Agarwal, Sohn, Lee & Papailiopoulos 2020,
    "Attack of the tails" (with negatives as the tail).

    >>> import torch
    >>> EdgeCase().alter(torch.tensor([[0.25, 1.0]]))
    tensor([[0.7500, 0.0000]])
    """

    low: float = Field(0.0, ge=-1e6, le=1e6)
    """The least number of an input."""
    high: float = Field(1.0, ge=-1e6, le=1e6)
    """The largest number of an input."""

    def alter(self, x: Tensor) -> Tensor:
        return self.low + self.high - x
