"""Quantization of single rows: QSGD and signs.

QSGD rounds numbers by chance to a few levels of a norm (Alistarh, Grubic, Li, Tomioka &
Vojnovic 2017, section 3.1, with buckets as in section 4).

With v a bucket of B numbers and s levels, |v_i| / |v|_2 lies between two of 0, 1/s, ..., 1, and one
of these is taken so that it is right on average. Its variance is at most min(B / s^2, sqrt(B) / s)
|v|^2 (Lemma 3.1).

Signs: one bit of each number (Bernstein, Wang, Azizzadenesheli & Anandkumar 2018, signSGD) times
the mean size of a row (Karimireddy, Rebjock, Stich & Jaggi 2019, Algorithm 1, "error feedback fixes
signSGD", where the memory is).

With aggregation.rule = "sign_majority" the server takes a majority of them.
"""

from __future__ import annotations

import math

from pydantic import Field

from privfed.client.compression.compression import Biased, RowByRow, Sending
from privfed.core.deferred import Tensor, torch
from privfed.core.streams import Keys, uniforms
from privfed.core.vector import Shapes


class Sign(Biased):
    """The sign of each number, times the mean size of the row's numbers.

    A client sends d bits and one number. Not linear: the server is sent each row by itself. Biased;
    with error feedback it goes where plain updates go.
    """

    def bits(self, shapes: Shapes) -> float:
        return shapes.length + 32

    def shortened(self, rows: Tensor) -> Tensor:
        return rows.sign() * rows.abs().mean(1, keepdim=True)


_SALT = 2**62 + 2
"""Of a client's coins: no epoch's, and none of `privfed.client.trainer`."""


class Qsgd(RowByRow):
    """Numbers rounded by chance to a few levels of their bucket's norm, unbiased.

    A client sends log2(2 levels + 1) bits for each number, and 32 for each bucket. Not linear: the
    server is sent each row by itself, to which it applies the clip, where it adds noise. Rounding
    may lengthen a row, so the clip comes after it.
    """

    levels: int = Field(4, ge=1, le=32767)
    """Levels above zero, s."""
    bucket: int = Field(512, ge=1)
    """How many numbers share a norm."""

    def bits(self, shapes: Shapes) -> float:
        d = shapes.length
        return d * math.ceil(math.log2(2 * self.levels + 1)) + 32 * math.ceil(d / self.bucket)

    def encode(
        self, updates: Tensor, error: Tensor | None, sending: Sending
    ) -> tuple[Tensor, Tensor | None]:
        if sending.keys is None:
            raise ValueError("qsgd rounds by each client's own coins, and is given none")
        chance = _uniforms(sending.keys, updates)
        parts = zip(
            torch.split(updates, self.bucket, 1), torch.split(chance, self.bucket, 1), strict=True
        )
        return torch.cat([self._rounded(part, coins) for part, coins in parts], dim=1), error

    def _rounded(self, part: Tensor, chance: Tensor) -> Tensor:
        """One bucket `[c, B]` of each client, by numbers in [0, 1) `[c, B]`."""
        norms = part.norm(dim=1, keepdim=True)
        levels = (part.abs() / norms.clamp(min=1e-30) * self.levels + chance).floor()
        rounded: Tensor = part.sign() * norms * levels / self.levels
        return rounded


def _uniforms(keys: Keys, rows: Tensor) -> Tensor:
    """Numbers in [0, 1) `[c, d]`, each client's its own."""
    drawn = uniforms(keys.per_client(rows.shape[1], salt=_SALT))
    return torch.from_numpy(drawn).to(rows)
