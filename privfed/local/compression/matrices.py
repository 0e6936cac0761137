"""The parameters of a model as matrices, of which a product of thin ones is sent, and the rest."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privfed.deferred import torch
from privfed.vector import Shapes

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Matrix:
    """A parameter `[height, width]` that begins at `start` of a flat vector.

    A kernel of a convolution is `[channels out, all others]`.
    """

    start: int
    height: int
    width: int

    def of(self, flat: Tensor) -> Tensor:
        """The matrices `[c, height, width]` in `flat` `[c, d]`, without a copy."""
        part = flat[:, self.start : self.start + self.height * self.width]
        return part.reshape(len(flat), self.height, self.width)


@dataclass(frozen=True)
class Matrices:
    """The `matrices` of a model of d numbers, and the `places` of all `others`: slices."""

    matrices: tuple[Matrix, ...]
    others: tuple[slice, ...]

    @classmethod
    def thinned(cls, shapes: Shapes, saves: int) -> Matrices:
        """Those of whose height and width the smaller is above `saves`; all else is sent whole."""
        matrices, others = [], []
        ends = itertools.accumulate(shapes.sizes)
        for shape, size, end in zip(shapes.shapes, shapes.sizes, ends, strict=True):
            height = shape[0] if shape else 1
            width = math.prod(shape[1:])
            if len(shape) > 1 and min(height, width) > saves:
                matrices.append(Matrix(end - size, height, width))
            else:
                others.append(slice(end - size, end))
        return cls(tuple(matrices), tuple(others))

    @property
    def rest(self) -> int:
        """How many numbers are in no matrix."""
        return sum(part.stop - part.start for part in self.others)

    def others_of(self, flat: Tensor) -> Tensor:
        """What is in no matrix `[c, rest]` of `flat` `[c, d]`."""
        parts = [flat[:, part] for part in self.others]
        return torch.cat(parts, dim=1) if parts else flat[:, :0]

    def put_others(self, flat: Tensor, others: Tensor) -> None:
        """Write `others` `[c, rest]` into their places of `flat` `[c, d]`."""
        sizes = [part.stop - part.start for part in self.others]
        for place, part in zip(self.others, torch.split(others, sizes, dim=1), strict=True):
            flat[:, place] = part
