"""The geometry of rows, as inner products: all that most rules need to know of them.

n rows of d numbers enter a rule only by their inner products, an n x n matrix; what the rule then
chooses are weights on the rows. So rules and pre-aggregators compose on small matrices, whatever d
is, and the rows are read twice: for the inner products, and for one final product. Wherever rows
lie, the small matrices lie on the CPU: a rule looks at what it finds in them step by step, and each
look at a GPU would wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from defenses.deferred import Tensor, torch

_CHUNK, _BLOCK = 8192, 40
_AT_ONCE = 64
"""Chunks whose products a GPU makes at once."""
_ROUNDING = 1e-5
"""The rounding of squared norms, in multiples of those about the center; float32 sums err less."""
_FAR = 100.0
"""Squared norms may be so many times the squared distances before precision is lost."""


@dataclass(frozen=True)
class Geometry:
    """How n rows lie to one another and to the origin; computed when it is first asked for.

    What needs to know no more than how many rows there are, as a mean does, costs no products.
    """

    rows: int
    """How many rows there are: n."""
    products: Callable[[], Tensor]
    """The inner products `[n + 1, n + 1]` that `gram` is."""
    lengths: Callable[[], Tensor] | None = None
    """The squared norms `[n]`, where they take no products."""

    @classmethod
    def of(cls, rows: Tensor, keep: Tensor | None = None) -> Geometry:
        """The geometry of `rows[keep]`, `[n, d]`."""
        count = len(rows) if keep is None else len(keep)
        return cls(count, partial(_amid, rows, keep), partial(_lengths, rows, keep))

    @cached_property
    def gram(self) -> Tensor:
        """Inner products `[n + 1, n + 1]` float64 about a point near the rows, on the CPU.

        The last is the origin. As only differences of rows are used, which point it is does not
        matter, but for precision: about a distant one, squared norms drown the distances.
        """
        return self.products()

    def distances(self) -> Tensor:
        """Squared distances between rows `[n, n]`."""
        return _between(self.gram)[:-1, :-1]

    @cached_property
    def norms(self) -> Tensor:
        """Squared distances of rows from the origin `[n]`."""
        return _between(self.gram)[:-1, -1] if self.lengths is None else self.lengths()

    def inner(self) -> Tensor:
        """Inner products of rows about the origin `[n, n]`."""
        squared = _between(self.gram)
        norms = squared[:-1, -1]
        return (norms[:, None] + norms[None, :] - squared[:-1, :-1]) / 2

    def cosines(self) -> Tensor:
        """The cosines of the angles between rows, about the origin `[n, n]`.

        They are 0 with a row of no direction: one whose norm drowns in the rounding of its inner
        products.
        """
        inner, diagonal = self.inner(), self.gram.diagonal()
        norms = inner.diagonal()
        directed = norms > _ROUNDING * (diagonal[:-1] + diagonal[-1])
        scale = torch.where(directed, norms.rsqrt(), 0.0)
        return (inner * scale[:, None] * scale[None, :]).clamp(-1.0, 1.0)

    def about_mean(self, weights: Tensor | None = None) -> Tensor:
        """Inner products of rows about their mean `[n, n]`.

        It is by `weights` `[n]`, which sum to one; without them all rows weigh alike.
        """
        products = self.gram[:-1, :-1]
        if weights is None:
            weights = products.new_full((self.rows,), 1 / self.rows)
        onto = products @ weights
        return products - onto[:, None] - onto[None, :] + weights @ onto

    def mixed(self, weights: Tensor) -> Geometry:
        """The geometry of the rows `weights @ rows`; weights `[m, n]` float64."""
        return Geometry(len(weights), lambda: _mixed(self.gram, weights))


def _lengths(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Squared norms `[n]` float64 of `rows[keep]`, on the CPU."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return (norms if keep is None else norms[keep]).cpu().double().square()


def _mixed(gram: Tensor, weights: Tensor) -> Tensor:
    """The inner products `[m + 1, m + 1]` of m mixtures of rows that have the products `gram`."""
    last = torch.zeros(1, weights.shape[1], dtype=weights.dtype, device=weights.device)
    onto = torch.cat([weights, last])  # the origin stays the last
    onto = torch.cat([onto, 1 - onto.sum(1, keepdim=True)], dim=1)
    return onto @ gram @ onto.T


def _between(gram: Tensor) -> Tensor:
    """Squared distances between rows, and of the origin, the last `[n + 1, n + 1]`."""
    norms = gram.diagonal()
    squared = (norms[:, None] + norms[None, :] - 2 * gram).clamp(min=0.0)
    return squared.fill_diagonal_(0.0)


def _amid(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Inner products of `rows[keep]` about a point that most of them are near to, on the CPU.

    It starts with the origin. Where most rows are much nearer to one of them than to it, they lie
    far out, and that one is taken instead; where that was an outlier, another, until it is none.
    Hostile rows can hide behind one another, each a thousandth as far out as the one before: so
    often it may take.
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
    """Inner products `[n + 1, n + 1]` float64 of `rows[keep]` and the origin, about `center` `[d]`.

    None is the origin. Column by column, so that no second copy of the rows is made; each chunk's
    products are summed in float64.
    """
    n = len(rows) if keep is None else len(keep)
    gram = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=rows.device)
    width = _CHUNK if rows.device.type == "cpu" else _CHUNK * _AT_ONCE
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
    """Add the inner products of `chunk` `[m, c]` to `gram` `[m, m]`, on and above its diagonal."""
    if chunk.device.type != "cpu":
        gram += batched_products(chunk)
        return
    m = len(gram)
    block = math.ceil(m / math.ceil(m / _BLOCK)) if m else 1
    for first in range(0, m, block):
        gram[first : first + block, first:] += chunk[first : first + block] @ chunk[first:].T


def batched_products(rows: Tensor) -> Tensor:
    """Inner products `[m, m]` float64 of `rows` `[m, c]`, in as few calls as may be.

    Those of 8192 columns are made at once, and their sums added up in float64.
    """
    count = rows.shape[1] // _CHUNK
    even, rest = rows[:, : count * _CHUNK], rows[:, count * _CHUNK :]
    chunks = even.view(len(rows), count, _CHUNK).transpose(0, 1)
    products: Tensor = (chunks @ chunks.transpose(1, 2)).sum(0, dtype=torch.float64)
    return products + rest @ rest.T
