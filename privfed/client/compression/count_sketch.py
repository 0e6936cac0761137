"""FetchSGD: count sketches, and the largest coordinates of their sum.

Source: Rothchild, Panda, Ullah, Ivkin, Stoica, Braverman, Gonzalez & Arora 2020, Algorithm 1.

A sketch has R rows. In each row a public hash function assigns coordinates to buckets, and signs to
coordinates; a bucket adds up its signed coordinates (Charikar, Chen & Farach-Colton 2002). With S
the sketch of a round's release and rho the momentum,

    S_u <- rho S_u + S,   S_e <- S_e + S_u,
    Delta = the k largest coordinates of the estimate of S_e,
    S_e, S_u <- 0 in all cells in which sketch(Delta) is nonzero

Momentum and residual are sketches at the server, computed from releases only; clients keep no
state. Algorithm 1 subtracts sketch(Delta) from S_e instead. If Delta has about as many coordinates
as there are cells, their estimates collide, and subtracting them makes S_e grow without bound. The
authors' own code therefore clears the cells of S_e and S_u, as here. Hashes are the same in all
rounds of a run: otherwise sketches of different rounds could not be added.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from privfed.client.compression.compression import Compression, Sending, Space
from privfed.client.objective import Memory
from privfed.core.deferred import Tensor, torch
from privfed.core.vector import Shapes


class CountSketch(Compression):
    """FetchSGD: count sketches are summed, and the largest coordinates of the sum are the update.

    A client sends about `fraction` * d numbers. They are clipped after sketching, because
    collisions may lengthen a row. Sketches are divided by sqrt(`sketch_rows`), which preserves the
    update's norm on average. The sketch is linear, and the largest coordinates are selected after
    the release. Secure sums and noise are therefore supported, and a round's privacy event is that
    of an uncompressed round.
    """

    fresh: ClassVar[bool] = False

    fraction: float = Field(0.1, gt=0, le=1)
    """Size of a sketch as a fraction of the model's size."""
    sketch_rows: int = Field(5, ge=1, le=99)
    """Number of hash functions; the median of their estimates is used."""
    top: float = Field(0.05, gt=0, le=1)
    """Fraction of the coordinates updated per round."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum rho of the sketches, in addition to any momentum of the server's optimizer."""

    def length(self, shapes: Shapes) -> int:
        return self.sketch_rows * self._columns(shapes)

    def _columns(self, shapes: Shapes) -> int:
        return max(1, round(self.fraction * shapes.length / self.sketch_rows))

    def init(self, space: Space) -> Memory:
        empty = torch.zeros(self.length(space.shapes))
        return {"momentum": empty, "error": empty}

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        return self.hashes(sending.space).sketch(updates), error

    def decode(self, released: Tensor, sending: Sending, memory: Memory) -> tuple[Tensor, Memory]:
        hashes, d = self.hashes(sending.space), sending.space.shapes.length
        momentum = self.momentum * memory["momentum"].to(released) + released
        error = memory["error"].to(released) + momentum
        estimated = hashes.estimate(error)
        largest = estimated.abs().topk(max(1, round(self.top * d))).indices
        update = torch.zeros_like(estimated)
        update[largest] = estimated[largest]
        waiting = hashes.sketch(update[None])[0] == 0.0
        return update, {"momentum": momentum * waiting, "error": error * waiting}

    def hashes(self, space: Space) -> Hashes:
        """Returns the public hash functions of a run."""
        return _hashes(space, self.sketch_rows, self._columns(space.shapes))


@dataclass(frozen=True)
class Hashes:
    """R hash functions of d coordinates.

    Attributes:
      buckets: bucket of each coordinate, shape [R, d], below `columns`.
      signs: sign of each coordinate, shape [R, d].
      columns: number of buckets.
    """

    buckets: Tensor
    signs: Tensor
    columns: int

    def sketch(self, rows: Tensor) -> Tensor:
        """Returns the sketches `[c, R * columns]` of `rows` `[c, d]`, divided by sqrt(R)."""
        device, few = rows.device, len(self.buckets)
        signed = [rows * signs.to(rows) for signs in self.signs]
        with _in_one_order():
            sums = [
                rows.new_zeros(len(rows), self.columns).index_add_(1, buckets.to(device), part)
                for buckets, part in zip(self.buckets, signed, strict=True)
            ]
        sketch: Tensor = torch.cat(sums, dim=1) / few**0.5
        return sketch

    def estimate(self, sketch: Tensor) -> Tensor:
        """Returns the vector `[d]` estimated from a `sketch` `[R * columns]`.

        A coordinate is the median of the R hash functions' estimates.
        """
        few = len(self.buckets)
        table = sketch.reshape(few, self.columns) * few**0.5
        guesses = table.gather(1, self.buckets.to(sketch.device)) * self.signs.to(sketch)
        ordered = guesses.sort(dim=0).values
        median: Tensor = (ordered[(few - 1) // 2] + ordered[few // 2]) / 2
        return median


@contextlib.contextmanager
def _in_one_order() -> Iterator[None]:
    """Returns a context in which a GPU adds in a fixed order, for reproducible seeded runs."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


@functools.lru_cache(maxsize=2)
def _hashes(space: Space, rows: int, columns: int) -> Hashes:
    d = space.shapes.length
    words = torch.from_numpy(space.keys(0).bits(rows * d).copy().view("int64")).reshape(rows, d)
    signs = 1.0 - 2.0 * (words & 1).double()
    return Hashes((words >> 1 & (1 << 62) - 1) % columns, signs, columns)
