"""The geometry of rows, as inner products: all that most rules need to know of them.

n rows of d numbers enter a rule only by their inner products, an n x n matrix; what the rule then
chooses are weights on the rows. So rules and pre-aggregators compose on small matrices, whatever d
is, and the rows are read twice: for the inner products, and for one final product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from defenses.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor


_CHUNK = 8192
_ROUNDING = 1e-5
"""The rounding of squared norms, in multiples of those about the center; float32 sums err less."""
_FAR = 100.0
"""Squared norms may be so many times the squared distances before precision is lost."""


@dataclass(frozen=True)
class Geometry:
    """Inner products `[n + 1, n + 1]` float64 about a point amid n rows; the last is the origin.

    As only differences of rows are used, which point it is does not matter, but for precision:
    about a distant one, squared norms drown the distances.
    """

    gram: Tensor

    @classmethod
    def of(cls, rows: Tensor, keep: Tensor | None = None) -> Geometry:
        """The geometry of `rows[keep]`, `[n, d]`, about one of them that most others are near to.

        It starts with the first. Where most rows are much nearer to another than to it, it was an
        outlier, and the other is taken instead, until it is none. Hostile rows can hide behind one
        another, each a thousandth as far out as the one before: so often it may take.
        """
        places = torch.arange(len(rows), device=rows.device) if keep is None else keep
        center = 0
        for _ in range(max(1, len(places))):
            gram = _about(rows, keep, rows[places[center]])
            geometry = cls(gram)
            if len(places) < 3:
                return geometry
            half = len(places) // 2
            near = geometry.distances().sort(dim=1).values[:, half]
            best = int(near.argmin())
            typical = gram.diagonal()[:-1].sort().values[half]
            if best == center or typical <= _FAR * near[best]:
                return geometry
            center = best
        return geometry

    @property
    def rows(self) -> int:
        """How many rows there are: n."""
        return len(self.gram) - 1

    def distances(self) -> Tensor:
        """Squared distances between rows `[n, n]`."""
        return self._between()[:-1, :-1]

    def norms(self) -> Tensor:
        """Squared distances of rows from the origin `[n]`."""
        return self._between()[:-1, -1]

    def inner(self) -> Tensor:
        """Inner products of rows about the origin `[n, n]`."""
        squared = self._between()
        norms = squared[:-1, -1]
        return (norms[:, None] + norms[None, :] - squared[:-1, :-1]) / 2

    def cosines(self) -> Tensor:
        """The cosines of the angles between rows, about the origin `[n, n]`.

        They are 0 with a row of no direction: one whose norm drowns in the rounding of its inner
        products.
        """
        norms, diagonal = self.norms(), self.gram.diagonal()
        directed = norms > _ROUNDING * (diagonal[:-1] + diagonal[-1])
        scale = torch.where(directed, norms.rsqrt(), 0.0)
        return (self.inner() * scale[:, None] * scale[None, :]).clamp(-1.0, 1.0)

    def about_mean(self, weights: Tensor) -> Tensor:
        """Inner products of rows about their mean by `weights` `[n]`, which sum to one `[n, n]`."""
        products = self.gram[:-1, :-1]
        onto = products @ weights
        return products - onto[:, None] - onto[None, :] + weights @ onto

    def mixed(self, weights: Tensor) -> Geometry:
        """The geometry of the rows `weights @ rows`; weights `[m, n]` float64."""
        last = torch.zeros(1, self.rows, dtype=weights.dtype, device=weights.device)
        onto = torch.cat([weights, last])  # the origin stays the last
        onto = torch.cat([onto, 1 - onto.sum(1, keepdim=True)], dim=1)
        return Geometry(onto @ self.gram @ onto.T)

    def _between(self) -> Tensor:
        """Squared distances between rows, and of the origin, the last `[n + 1, n + 1]`."""
        norms = self.gram.diagonal()
        squared = (norms[:, None] + norms[None, :] - 2 * self.gram).clamp(min=0.0)
        return squared.fill_diagonal_(0.0)


def _about(rows: Tensor, keep: Tensor | None, center: Tensor) -> Tensor:
    """Inner products `[n + 1, n + 1]` float64 of `rows[keep]` and the origin, about `center`.

    Column by column, so that no second copy of the rows is made; each chunk's products are summed
    in float64.
    """
    n = len(rows) if keep is None else len(keep)
    gram = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], _CHUNK):
        chunk, middle = rows[:, start : start + _CHUNK], center[start : start + _CHUNK]
        centered = torch.empty(n + 1, chunk.shape[1], dtype=rows.dtype, device=rows.device)
        torch.sub(chunk if keep is None else chunk[keep], middle, out=centered[:n])
        torch.neg(middle, out=centered[n])
        gram += (centered @ centered.T).double()
    return gram
