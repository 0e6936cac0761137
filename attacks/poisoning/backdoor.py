"""Backdoors: the model classifies inputs with a patch, or inverted inputs, as the attacker's target
label.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from attacks.poisoning.hidden import Altered


class Backdoor(Altered):
    """Makes the model classify examples with a patch as `target` (BadNets), and multiplies updates.

    The patch has `size` x `size` pixels of brightness `value`, in the last rows and columns of
    images `[*, height, width]` or of flattened square images. In examples of other shapes it is the
    last `size`^2 numbers. With `boost` = cohort size / number of attackers, the attackers' model
    replaces the global one.

    Each attacker knows its own data and updates. Success: the fraction of other classes' test
    examples with a patch that are classified as `target`.

    Source: Gu, Dolan-Gavitt & Garg 2017 (the trigger); Bagdasaryan, Veit, Hua, Estrin & Shmatikov
    2020, equation 3 (model replacement).

    >>> import torch
    >>> Backdoor(size=1).alter(torch.zeros(1, 2, 2))
    tensor([[[0., 0.],
             [0., 1.]]])
    """

    size: int = Field(2, ge=1, le=100)
    """Side of the patch, in pixels."""
    value: float = Field(1.0, ge=-1e6, le=1e6)
    """Brightness of the patch."""

    def unfit_reason(self, shape: tuple[int, ...], numbers: bool) -> str | None:
        image = shape[-2:]
        if self.size**2 >= math.prod(image) or (len(image) == 2 and self.size > min(image)):
            sides = " x ".join(map(str, image))
            return (
                f"a patch of {self.size} x {self.size} covers all {sides} numbers or extends "
                "beyond them; lower attack.size"
            )
        return super().unfit_reason(shape, numbers)

    def alter(self, x: Tensor) -> Tensor:
        return torch.where(self.patch(x) >= 0, self.value, x)

    def patch(self, x: Tensor) -> Tensor:
        """Returns, for each position of one of the examples x `[n, *]`, the index of its patch
        pixel, int64 `[*]`.

        Patch pixels are numbered from 0, row by row; positions outside the patch have -1.
        """
        pixels, size = torch.full(x.shape[1:], -1, device=x.device), self.size
        numbers = torch.arange(size**2, device=x.device)
        side = math.isqrt(pixels.numel())
        if x.dim() > 2:
            pixels[..., -size:, -size:] = numbers.view(size, size)
        elif side * side == pixels.numel() and side > size:
            pixels.view(side, side)[-size:, -size:] = numbers.view(size, size)
        else:
            pixels[-(size**2) :] = numbers
        return pixels


class EdgeCase(Altered):
    """Makes the model classify inverted examples, which no honest client has, as `target`.

    Every number x becomes `low` + `high` - x. The input has no trigger, but it is far in the tail
    of the training distribution, so honest updates do not correct the prediction.

    Knows its own data and updates. Success: the fraction of other classes' test examples, inverted,
    that are classified as `target`.

    Source: Wang, Sreenivasan, Rajput, Vishwakarma, Agarwal, Sohn, Lee & Papailiopoulos 2020,
    "Attack of the tails" (with negatives as the tail; `tail` takes examples as they are).

    >>> import torch
    >>> EdgeCase().alter(torch.tensor([[0.25, 1.0]]))
    tensor([[0.7500, 0.0000]])
    """

    low: float = Field(0.0, ge=-1e6, le=1e6)
    """Smallest possible number of an input."""
    high: float = Field(1.0, ge=-1e6, le=1e6)
    """Largest possible number of an input."""

    def alter(self, x: Tensor) -> Tensor:
        return self.low + self.high - x
