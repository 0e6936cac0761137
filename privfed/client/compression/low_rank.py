"""Low rank: each matrix of an update in a public random subspace.

Source: Konecny, McMahan, Yu, Richtarik, Suresh & Bacon 2016, section 2, structured updates of low
rank.

A layer's update M `[h, w]` is sent as M Q. The orthonormal columns of Q `[w, r]` span a uniformly
random subspace, so E[Q Q^T] = (r / w) I, and (w / r) M Q Q^T equals M in expectation. The paper
trains M within the subspace. Here training is unconstrained and its update is projected, which
works with every objective. A matrix with more rows than columns is sent as Q^T M.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from privfed.client.compression.compression import Space
from privfed.client.compression.linear import Linear
from privfed.core.deferred import Tensor, torch
from privfed.core.streams import Keys
from privfed.core.vector import Shapes


@dataclass(frozen=True)
class Matrix:
    """A parameter `[height, width]` that begins at index `start` of a flat vector.

    A convolution kernel is flattened to `[output channels, all other dimensions]`.
    """

    start: int
    height: int
    width: int

    def of(self, flat: Tensor) -> Tensor:
        """Returns views `[c, height, width]` of this matrix in each vector of `flat` `[c, d]`."""
        part = flat[:, self.start : self.start + self.height * self.width]
        return part.reshape(len(flat), self.height, self.width)


@dataclass(frozen=True)
class Matrices:
    """The `matrices` of a flat model `[d]`, and the slices `others` of all other parameters."""

    matrices: tuple[Matrix, ...]
    others: tuple[slice, ...]

    @classmethod
    def thinned(cls, shapes: Shapes, saves: int) -> Matrices:
        """Splits a model into matrices with both sides above `saves`, and all other parameters.

        Parameters of fewer than two dimensions are never matrices.
        """
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
        """Number of values outside of the matrices."""
        return sum(part.stop - part.start for part in self.others)

    def others_of(self, flat: Tensor) -> Tensor:
        """Returns the values `[c, rest]` of `flat` `[c, d]` that are outside of the matrices."""
        parts = [flat[:, part] for part in self.others]
        return torch.cat(parts, dim=1) if parts else flat[:, :0]

    def put_others(self, flat: Tensor, others: Tensor) -> None:
        """Writes `others` `[c, rest]` to their positions in `flat` `[c, d]`."""
        sizes = [part.stop - part.start for part in self.others]
        for place, part in zip(self.others, torch.split(others, sizes, dim=1), strict=True):
            flat[:, place] = part


class LowRank(Linear):
    """A public random subspace of each layer's matrix, new in each round.

    A matrix `[h, w]` takes rank * min(h, w) numbers; vectors, and matrices that would not become
    smaller, are sent uncompressed. A row is clipped after the projection. Without error feedback,
    the release is multiplied by max(h, w) / rank. The compression is linear: secure sums and noise
    are supported, and a round's event is that of an uncompressed round.
    """

    rank: int = Field(4, ge=1)
    """Dimension of each subspace."""

    def length(self, shapes: Shapes) -> int:
        matrices = _matrices(shapes, self.rank)
        return sum(_thin(each, self.rank) for each in matrices.matrices) + matrices.rest

    def projection(self, space: Space, number: int) -> Subspaces:
        return _subspaces(space, number, self.rank)


def _matrices(shapes: Shapes, rank: int) -> Matrices:
    """Splits a model into matrices that a projection makes smaller, and all other parameters.

    A matrix becomes smaller if its longer side exceeds `rank`.
    """
    split = Matrices.thinned(shapes, 0)
    wide = tuple(each for each in split.matrices if max(each.height, each.width) > rank)
    small = (each for each in split.matrices if each not in wide)
    slices = [slice(each.start, each.start + each.height * each.width) for each in small]
    others = sorted([*split.others, *slices], key=lambda part: part.start)
    return Matrices(wide, tuple(others))


def _thin(matrix: Matrix, rank: int) -> int:
    """Returns the number of values that a client sends for `matrix`."""
    return rank * min(matrix.height, matrix.width)


@dataclass(frozen=True)
class Subspaces:
    """The projection of a round: a basis `[longer side, r]` for each of the `matrices`.

    `d` is the number of the model's parameters.
    """

    matrices: Matrices
    bases: tuple[Tensor, ...]
    d: int

    def apply(self, rows: Tensor) -> Tensor:
        """Returns `[c, m]`: each matrix times its basis, then the values outside of matrices."""
        thin = [self._turned(m, rows) @ q.to(rows) for m, q in self._pairs()]
        return torch.cat([*(part.flatten(1) for part in thin), self.matrices.others_of(rows)], 1)

    def back(self, sent: Tensor) -> Tensor:
        """Returns `[c, d]`: sent matrices times their transposed bases, and the other values."""
        flat, start = sent.new_zeros(len(sent), self.d), 0
        for matrix, basis in self._pairs():
            rank = basis.shape[1]
            count = _thin(matrix, rank)
            part = sent[:, start : start + count].reshape(len(sent), -1, rank)
            self._turned(matrix, flat).copy_(part @ basis.to(sent).T)
            start += count
        self.matrices.put_others(flat, sent[:, start:])
        return flat

    def scales(self) -> Tensor:
        """Returns each coordinate's scale `[d]`: its matrix' longer side over the rank, or 1."""
        scales = torch.ones(1, self.d)
        for matrix, basis in self._pairs():
            matrix.of(scales).fill_(len(basis) / basis.shape[1])
        return scales[0]

    def _pairs(self) -> Iterator[tuple[Matrix, Tensor]]:
        return zip(self.matrices.matrices, self.bases, strict=True)

    def _turned(self, matrix: Matrix, rows: Tensor) -> Tensor:
        """Returns the matrix in each of `rows`, with its longer side last, without a copy."""
        part = matrix.of(rows)
        return part if matrix.width >= matrix.height else part.transpose(1, 2)


@functools.lru_cache(maxsize=4)
def _subspaces(space: Space, number: int, rank: int) -> Subspaces:
    matrices, keys = _matrices(space.shapes, rank), space.keys(number)
    longer = [max(each.height, each.width) for each in matrices.matrices]
    bases = [
        orthonormal(keys.derived(b"layer %d" % place), size, rank)
        for place, size in enumerate(longer)
    ]
    return Subspaces(matrices, tuple(bases), space.shapes.length)


def orthonormal(keys: Keys, size: int, rank: int) -> Tensor:
    """Returns an orthonormal basis `[size, rank]` of a uniformly random subspace, float64.

    The subspace is spanned by independent normal columns, whose distribution is rotation-invariant.
    """
    normal = torch.from_numpy(keys.normal(size * rank)).reshape(size, rank)
    basis: Tensor = torch.linalg.qr(normal).Q
    return basis
