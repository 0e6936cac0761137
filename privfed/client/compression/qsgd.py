"""Quantization of each client's row: QSGD and signs.

QSGD rounds numbers stochastically to a few levels of a norm (Alistarh, Grubic, Li, Tomioka &
Vojnovic 2017, section 3.1, with buckets as in section 4).

With v a bucket of B numbers and s levels, |v_i| / |v|_2 is rounded without bias to one of the two
nearest of 0, 1/s, ..., 1. The variance is at most min(B / s^2, sqrt(B) / s) |v|^2 (Lemma 3.1).

Signs: one bit per number (Bernstein, Wang, Azizzadenesheli & Anandkumar 2018, signSGD) times the
mean absolute value of a row (Karimireddy, Rebjock, Stich & Jaggi 2019, Algorithm 1, "error feedback
fixes signSGD", which adds the residual).

With aggregation.rule = "sign_majority" the server takes the majority of the signs.
"""

from __future__ import annotations

import math

from pydantic import Field

from privfed.client.compression.compression import Biased, RowByRow, Sending
from privfed.core.deferred import Tensor, torch
from privfed.core.streams import Keys, uniforms
from privfed.core.vector import Shapes


class Sign(Biased):
    """The sign of each number, times the mean absolute value of the row.

    A client sends d bits and one number. The compression is not linear, so the server receives each
    row. It is biased; with error feedback, training converges to the same points as with
    uncompressed updates.
    """

    def bits(self, shapes: Shapes) -> float:
        return shapes.length + 32

    def shortened(self, rows: Tensor) -> Tensor:
        return rows.sign() * rows.abs().mean(1, keepdim=True)


_SALT = 2**62 + 2
"""Salt of a client's random stream, which no epoch and no other use of the stream has."""


class Qsgd(RowByRow):
    """Unbiased stochastic rounding to multiples of 1 / `levels` of each bucket's L2 norm.

    A client sends ceil(log2(2 levels + 1)) bits per number, and 32 per bucket. The compression is
    not linear, so the server receives each row, and clips it if the server adds the noise. Rounding
    may lengthen a row, so clipping comes after it.
    """

    levels: int = Field(4, ge=1, le=32767)
    """Number s of levels above zero."""
    bucket: int = Field(512, ge=1)
    """Number of values in a bucket, which are rounded relative to the norm of the bucket."""

    def bits(self, shapes: Shapes) -> float:
        d = shapes.length
        return d * math.ceil(math.log2(2 * self.levels + 1)) + 32 * math.ceil(d / self.bucket)

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        if sending.keys is None:
            raise ValueError("qsgd needs each client's random stream, but none was passed")
        chance = _uniforms(sending.keys, updates)
        parts = zip(
            torch.split(updates, self.bucket, 1), torch.split(chance, self.bucket, 1), strict=True
        )
        return torch.cat([self._rounded(*part) for part in parts], dim=1), error

    def _rounded(self, part: Tensor, chance: Tensor) -> Tensor:
        """Returns the bucket `part` `[c, B]` rounded, by uniform numbers `chance` `[c, B]`."""
        norms = part.norm(dim=1, keepdim=True)
        levels = (part.abs() / norms.clamp(min=1e-30) * self.levels + chance).floor()
        rounded: Tensor = part.sign() * norms * levels / self.levels
        return rounded


def _uniforms(keys: Keys, rows: Tensor) -> Tensor:
    """Returns uniform numbers in [0, 1) `[c, d]`, independent for each client."""
    drawn = uniforms(keys.per_client(rows.shape[1], salt=_SALT))
    return torch.from_numpy(drawn).to(rows)
