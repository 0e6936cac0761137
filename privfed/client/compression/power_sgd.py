"""PowerSGD: each layer's update by one step of the power method, in two exchanges.

Both exchanges use one cohort. Source: Vogels, Karimireddy & Jaggi 2019, Algorithm 1.

With M the mean of the clients' updates of a layer, `[h, w]`, and Q `[w, r]` the orthonormal basis
released by the previous round:

    P = mean of M_k Q,   P^ = an orthonormal basis of P's columns,   Q' = mean of M_k^T P^,
    M is approximated by P^ Q'^T,   next Q = an orthonormal basis of the columns of Q'

Both means are sums of values that clients compute from their own update, so secure sums support
them.

*Privacy.* A round releases (P, Q'). Both rows of a client are functions of the update that it
trained in this round. Each row is clipped to C, and the second depends on the first release only
through P^. The two are therefore adaptive Gaussian releases over one cohort, as in FedDANE: one
event of two exchanges, Poisson(q, Gaussian(z / sqrt(2))), not two events. Bases are orthonormal, so
no row is longer than the update. To save memory, a simulation trains each client again for the
second exchange, with the same random numbers; a deployed client keeps its update. DP-SGD in silos
is refused, because it would draw its noise twice.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from privfed.client.compression.compression import ErrorFeedback, Sending, Space, compressed_row
from privfed.client.compression.low_rank import Matrices, orthonormal
from privfed.client.exchange import Broadcast, Exchange
from privfed.client.objective import Memory
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Shapes


class PowerSgd(ErrorFeedback):
    """PowerSGD: rank r approximations of each layer, by two exchanges per round.

    A matrix `[h, w]` takes rank * h numbers in the first exchange and rank * w in the second, which
    also contains vectors and small matrices uncompressed. Rows of both exchanges are padded to the
    same length. Each row is clipped separately, and the round is one event of two exchanges.
    Given the first release, rows are linear in the update: secure sums and noise are supported,
    with aggregation.rule = "mean".
    """

    exchanges: ClassVar[int] = 2

    rank: int = Field(2, ge=1)
    """Rank of each layer's bases."""

    def length(self, shapes: Shapes) -> int:
        split = _split(shapes, self.rank)
        heights = self.rank * sum(each.height for each in split.matrices)
        widths = self.rank * sum(each.width for each in split.matrices)
        return max(heights, widths + split.rest)

    def received(self, shapes: Shapes) -> int:
        """Returns the number of values of the bases Q and P^, which a client receives per round."""
        matrices = _split(shapes, self.rank).matrices
        return self.rank * sum(each.height + each.width for each in matrices)

    def init(self, space: Space) -> Memory:
        keys, split = space.keys(0), _split(space.shapes, self.rank)
        bases = [
            orthonormal(keys.derived(b"layer %d" % place), each.width, self.rank)
            for place, each in enumerate(split.matrices)
        ]
        return {"basis": _flat([basis[None] for basis in bases])[0].float()}

    def exchanges_before(
        self, sending: Sending, memory: Memory
    ) -> Generator[Exchange, Tensor, Broadcast]:
        """Yields the first exchange, of layers' updates times bases Q; returns the bases P^."""
        basis = {"compression_basis": memory["basis"].to(sending.broadcast["params"])}
        layout = compressed_row(self.length(sending.space.shapes))
        released = yield Exchange("project", {**sending.broadcast, **basis}, layout)
        split = _split(sending.space.shapes, self.rank)
        sides = [each.height for each in split.matrices]
        left = [_orthonormalised(part) for part in _thin(released[None], sides, self.rank)]
        return {"compression_left": _flat(left)[0].to(released)}

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the rows `[c, m]` of the current exchange, and residuals `[c, d]` or None.

        The first exchange returns the residuals unchanged.
        """
        corrected = updates if error is None else updates + error
        split, broadcast = _split(sending.space.shapes, self.rank), sending.broadcast
        if "compression_left" not in broadcast:
            sides = [each.width for each in split.matrices]
            bases = _thin(broadcast["compression_basis"][None], sides, self.rank)
            parts = [
                each.of(corrected) @ basis
                for each, basis in zip(split.matrices, bases, strict=True)
            ]
            return self._padded(parts, corrected[:, :0], sending), error
        left = self._left(sending)
        parts = [
            each.of(corrected).transpose(1, 2) @ basis
            for each, basis in zip(split.matrices, left, strict=True)
        ]
        sent = self._padded(parts, split.others_of(corrected), sending)
        if error is None:
            return sent, None
        return sent, corrected - self._update(sent, sending)

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        split = _split(sending.space.shapes, self.rank)
        right = _thin(released[None], [each.width for each in split.matrices], self.rank)
        basis = _flat([_orthonormalised(part) for part in right])[0].to(released)
        return self._update(released[None], sending)[0], {"basis": basis}

    def _left(self, sending: Sending) -> list[Tensor]:
        """Returns the released orthonormal basis P^ `[1, h, r]` of each layer."""
        split = _split(sending.space.shapes, self.rank)
        sides = [each.height for each in split.matrices]
        return _thin(sending.broadcast["compression_left"][None], sides, self.rank)

    def _update(self, sent: Tensor, sending: Sending) -> Tensor:
        """Returns updates `[c, d]` from rows `[c, m]` of the second exchange: P^ Q'^T by layer."""
        split = _split(sending.space.shapes, self.rank)
        flat = sent.new_zeros(len(sent), sending.space.shapes.length)
        sides = [each.width for each in split.matrices]
        right = _thin(sent, sides, self.rank)
        for each, left, part in zip(split.matrices, self._left(sending), right, strict=True):
            each.of(flat).copy_(left @ part.transpose(1, 2))
        start = self.rank * sum(sides)
        split.put_others(flat, sent[:, start : start + split.rest])
        return flat

    def _padded(self, parts: list[Tensor], others: Tensor, sending: Sending) -> Tensor:
        """Concatenates `parts` and `others` `[c, k]`, padded with zeros, to rows `[c, m]`."""
        rows = torch.cat([*(part.flatten(1) for part in parts), others], dim=1)
        missing = self.length(sending.space.shapes) - rows.shape[1]
        return torch.nn.functional.pad(rows, (0, missing))


@functools.lru_cache(maxsize=4)
def _split(shapes: Shapes, rank: int) -> Matrices:
    """Splits a model into matrices to compress, with both sides above 2 `rank`, and the others."""
    return Matrices.thinned(shapes, 2 * rank)


def _thin(flat: Tensor, sides: list[int], rank: int) -> list[Tensor]:
    """Returns the matrices `[c, side, rank]` that begin `flat` `[c, m]`, one for each side."""
    sizes = [side * rank for side in sides]
    parts = torch.split(flat[:, : sum(sizes)], sizes, dim=1)
    return [part.reshape(len(flat), -1, rank) for part in parts]


def _flat(parts: list[Tensor]) -> Tensor:
    """Concatenates thin matrices `[c, side, rank]`: `[c, m]`."""
    return torch.cat([part.flatten(1) for part in parts], dim=1) if parts else torch.zeros(1, 0)


def _orthonormalised(part: Tensor) -> Tensor:
    """Returns an orthonormal basis, in float64, of the columns of `part` `[1, side, rank]`."""
    basis: Tensor = torch.linalg.qr(part.double()).Q
    return basis
