"""No privacy: the exact weighted average, with an infinite epsilon."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from accounting.events import Event
from accounting.releases import Unprotected
from privfed.core.deferred import Tensor
from privfed.core.streams import Keys
from privfed.core.vector import Layout
from privfed.privacy.clipping import averaged
from privfed.privacy.mechanism import (
    BoundedRows,
    BoundedSum,
    Encoding,
    Mechanism,
    PublicState,
)
from privfed.sampling.cohort import Witness


class NoPrivacy(Mechanism):
    """No privacy: epsilon is infinite.

    Releases sum of rows / divisor, where the divisor is the realised weight of the cohort.
    """

    trust: ClassVar[Literal["nobody"]] = "nobody"
    arithmetic: ClassVar[str] = "no noise"
    private: ClassVar[bool] = False

    @property
    def clip(self) -> float:
        return math.inf

    def event(self, witness: Witness, exchanges: int) -> Event:
        reason = "no noise was added"
        return Event(Unprotected(reason), witness.sampler, witness.relation)

    def encoding(self, state: PublicState) -> Encoding:
        return Encoding()

    def at(self, noise_multiplier: float | None) -> Self:
        return self

    def noise_on_update(self, size: int) -> float:
        return 0.0

    def bound(self, rows: Tensor, layout: Layout, keys: Keys, state: PublicState) -> BoundedRows:
        return BoundedRows(rows, math.inf)

    def release(
        self, total: BoundedSum, divisor: float, keys: Keys, state: PublicState
    ) -> tuple[Tensor, PublicState]:
        return averaged(total.total, divisor), state
