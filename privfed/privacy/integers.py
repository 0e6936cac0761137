"""Integers: the rows that secure sums add, and the noise that clients add to them."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.core.streams import Keys

Integers = NDArray[np.int64]
"""Integers `[n]`."""


class Share(Protocol):
    """One client's noise in one sum: a frozen dataclass, or a `Part`.

    The parties of a secure sum compare shares by class and fields (`privfed.secure.agreement`).
    Fields must be numbers, texts, None, tuples of these, or objects with such fields.
    """

    layered: ClassVar[bool]
    """Whether the noise consists of layers, which the secure sum itself adds and removes."""

    @property
    def total_variation(self) -> float:
        """Total variation distance of one number's distribution from the accounted distribution."""

    @property
    def most(self) -> int:
        """Largest absolute value that can be drawn."""

    def draw(self, keys: Keys, count: int) -> Integers:
        """Returns one client's noise `[count]`, in integer steps of the encoding."""
