"""The geometry of rows: their inner products, which suffice for most rules.

A rule reads n rows of d numbers only through their inner products, an n x n matrix, and returns
weights on the rows. Rules and pre-aggregators therefore compose on small matrices, whatever d is.
The rows are read twice: for the inner products and for the final product. The small matrices are on
the CPU, even if the rows are on a GPU: rules inspect them step by step, and each inspection of a
GPU tensor would synchronise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from defenses.deferred import Tensor, torch

_CHUNK, _BLOCK = 8192, 40
_BATCH_SIZE = 64
"""Number of chunks whose products a GPU computes at once."""
_ROUNDING = 1e-5
"""Relative rounding error of squared norms about the center; float32 sums have a smaller error."""
_FAR = 100.0
"""Ratio of squared norms to squared distances above which the rows are recentered for precision."""


@dataclass(frozen=True)
class Geometry:
    """Inner products and distances of n rows and the origin, computed when they are first read.

    Rules that need only the number of rows, such as the mean, compute no products.
    """

    rows: int
    """Number of rows n."""
    products: Callable[[], Tensor]
    """Computes the inner products `[n + 1, n + 1]` that `gram` caches."""
    lengths: Callable[[], Tensor] | None = None
    """Computes the rows' squared norms `[n]`; None: they are computed from the products."""

    @classmethod
    def of(cls, rows: Tensor, keep: Tensor | None = None) -> Geometry:
        """Returns the geometry of the rows `rows[keep]`; `rows` are `[N, d]`, and a `keep` of None
        keeps all.
        """
        count = len(rows) if keep is None else len(keep)
        return cls(count, partial(_amid, rows, keep), partial(_lengths, rows, keep))

    @cached_property
    def gram(self) -> Tensor:
        """Inner products `[n + 1, n + 1]` float64, centred at a point near the rows, on the CPU.

        The last row and column belong to the origin. Only differences of rows are used, so the
        choice of the point affects precision only: about a distant point, distances are lost in the
        rounding of squared norms.
        """
        return self.products()

    def distances(self) -> Tensor:
        """Returns the squared distances between rows, `[n, n]`."""
        return _between(self.gram)[:-1, :-1]

    @cached_property
    def norms(self) -> Tensor:
        """Squared norms of the rows, `[n]`."""
        return _between(self.gram)[:-1, -1] if self.lengths is None else self.lengths()

    def inner(self) -> Tensor:
        """Returns inner products `[n, n]` of the rows as vectors from the origin."""
        squared = _between(self.gram)
        norms = squared[:-1, -1]
        return (norms[:, None] + norms[None, :] - squared[:-1, :-1]) / 2

    def cosines(self) -> Tensor:
        """Returns the cosines `[n, n]` of the angles between rows as vectors from the origin.

        The cosine is 0 for a row whose norm is below the rounding error of its inner products, as
        its direction is undefined.
        """
        inner, diagonal = self.inner(), self.gram.diagonal()
        norms = inner.diagonal()
        directed = norms > _ROUNDING * (diagonal[:-1] + diagonal[-1])
        scale = torch.where(directed, norms.rsqrt(), 0.0)
        return (inner * scale[:, None] * scale[None, :]).clamp(-1.0, 1.0)

    def about_mean(self, weights: Tensor | None = None) -> Tensor:
        """Returns the inner products `[n, n]` of the differences of rows from their weighted mean.

        `weights` `[n]` sum to one; None weights all rows equally.
        """
        products = self.gram[:-1, :-1]
        if weights is None:
            weights = products.new_full((self.rows,), 1 / self.rows)
        onto = products @ weights
        return products - onto[:, None] - onto[None, :] + weights @ onto

    def mixed(self, weights: Tensor) -> Geometry:
        """Returns the geometry of the m mixtures `weights @ rows`; `weights` are `[m, n]`
        float64.
        """
        return Geometry(len(weights), lambda: _mixed(self.gram, weights))


def _lengths(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Returns the squared norms `[n]` float64 of `rows[keep]`, on the CPU."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return (norms if keep is None else norms[keep]).cpu().double().square()


def _mixed(gram: Tensor, weights: Tensor) -> Tensor:
    """Returns inner products `[m + 1, m + 1]` of m mixtures and the origin, from those of the
    rows.
    """
    last = torch.zeros(1, weights.shape[1], dtype=weights.dtype, device=weights.device)
    onto = torch.cat([weights, last])  # the origin remains the last row
    onto = torch.cat([onto, 1 - onto.sum(1, keepdim=True)], dim=1)
    return onto @ gram @ onto.T


def _between(gram: Tensor) -> Tensor:
    """Returns the squared distances `[n + 1, n + 1]` between n rows and the origin, from `gram`."""
    norms = gram.diagonal()
    squared = (norms[:, None] + norms[None, :] - 2 * gram).clamp(min=0.0)
    return squared.fill_diagonal_(0.0)


def _amid(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Returns inner products `[n + 1, n + 1]` of `rows[keep]` and the origin, on the CPU.

    The products are of vectors from a point near most rows. The search for the point starts at the
    origin. If some row is more than ten times nearer to most rows (by median distance) than the
    current point is, that row becomes the new point. The search ends if there is no such row. If
    Byzantine rows form a chain, each step may advance by one row only, so up to n steps are
    allowed.
    """
    places = torch.arange(len(rows)) if keep is None else keep.cpu()
    center = None
    gram = _about(rows, keep, None).cpu()
    for _ in range(len(places)):
        half = len(places) // 2
        near = _between(gram)[:-1, :-1].sort(dim=1).values[:, half]
        best = int(near.argmin())
        typical = gram.diagonal()[:-1].sort().values[half]
        if best == center or typical <= _FAR * near[best]:
            break
        center = best
        gram = _about(rows, keep, rows[places[center]]).cpu()
    return gram


def _about(rows: Tensor, keep: Tensor | None, center: Tensor | None) -> Tensor:
    """Returns inner products `[n + 1, n + 1]` of `rows[keep]` and the origin, about `center` `[d]`.

    The products are float64. A center of None is the origin. Columns are processed in chunks, so
    that the rows are not copied; the products of each chunk are summed in float64.
    """
    n = len(rows) if keep is None else len(keep)
    gram = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=rows.device)
    width = _CHUNK if rows.device.type == "cpu" else _CHUNK * _BATCH_SIZE
    room = torch.empty(n + 1, min(width, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    for start in range(0, rows.shape[1], width):
        chunk = rows[:, start : start + width]
        chunk = chunk if keep is None else chunk[keep]
        if center is None:
            _add_products(gram[:n, :n], chunk)
        else:
            middle, centered = center[start : start + width], room[:, : chunk.shape[1]]
            torch.sub(chunk, middle, out=centered[:n])
            torch.neg(middle, out=centered[n])
            _add_products(gram, centered)
    return gram.triu() + gram.triu(1).T


def _add_products(gram: Tensor, chunk: Tensor) -> None:
    """Adds the inner products of `chunk` `[m, c]` to `gram` `[m, m]`, on and above its diagonal."""
    if chunk.device.type != "cpu":
        gram += batched_products(chunk)
        return
    m = len(gram)
    block = math.ceil(m / math.ceil(m / _BLOCK)) if m else 1
    for first in range(0, m, block):
        gram[first : first + block, first:] += chunk[first : first + block] @ chunk[first:].T


def batched_products(rows: Tensor) -> Tensor:
    """Returns inner products `[m, m]` float64 of `rows` `[m, c]` with few kernel calls.

    Products of 8192 columns are computed in one batch, and their sums are accumulated in float64.
    """
    count = rows.shape[1] // _CHUNK
    even, rest = rows[:, : count * _CHUNK], rows[:, count * _CHUNK :]
    chunks = even.view(len(rows), count, _CHUNK).transpose(0, 1)
    products: Tensor = (chunks @ chunks.transpose(1, 2)).sum(0, dtype=torch.float64)
    return products + rest @ rest.T
