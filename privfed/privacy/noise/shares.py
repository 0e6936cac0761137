"""One client's share of distributed noise, in whole steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.privacy.noise.discrete_gaussian import discrete_gaussian
from privfed.privacy.noise.table_sampler import (
    TOTAL_VARIATION,
    discrete_gaussian_table,
    reach,
    skellam_table,
)
from privfed.streams import Keys

Whole = NDArray[np.int64]


class Share(Protocol):
    """One client's noise in one sum: a frozen dataclass, or a `Part`.

    The parties of a secure sum compare it by its class and fields (`privfed.secure.agreement`),
    which are numbers, texts, None, tuples, or again such values; others are refused.
    """

    layered: ClassVar[bool]

    @property
    def total_variation(self) -> float:
        """Of one number, from the distribution that is accounted for."""
        ...

    @property
    def most(self) -> int: ...

    def draw(self, keys: Keys, count: int) -> Whole: ...


@dataclass(frozen=True)
class SkellamShare:
    """Skellam of `variance`; none at all for zero."""

    variance: float
    layered: ClassVar[bool] = False

    @property
    def total_variation(self) -> float:
        return TOTAL_VARIATION if self.variance else 0.0

    @property
    def most(self) -> int:
        return reach(math.sqrt(self.variance)) if self.variance else 0

    def draw(self, keys: Keys, count: int) -> Whole:
        if not self.variance:
            return np.zeros(count, dtype=np.int64)
        return skellam_table(self.variance).draw(keys, count)


@dataclass(frozen=True)
class DiscreteGaussianShare:
    """A discrete Gaussian of `deviation`; none at all for zero."""

    deviation: float
    exact: bool = False
    layered: ClassVar[bool] = False

    @property
    def total_variation(self) -> float:
        return 0.0 if self.exact or not self.deviation else TOTAL_VARIATION

    @property
    def most(self) -> int:
        return math.ceil(40 * self.deviation)

    def draw(self, keys: Keys, count: int) -> Whole:
        if not self.deviation:
            return np.zeros(count, dtype=np.int64)
        if self.exact:
            return discrete_gaussian(keys, round(self.deviation**2), count)
        return discrete_gaussian_table(self.deviation).draw(keys, count)


@dataclass(frozen=True)
class Layers:
    """Noise in layers, of which a secure sum takes off what too many survivors added.

    Of n clients each adds Skellam noise of variance v / n and, in layer k = 1, 2, ..., T, of
    v / ((n - k + 1) (n - k)). With D of them gone, the others' base and first D layers make up
    (n - D) v / (n - D) = v: layers above D are taken off (Jiang et al. 2024, XNoise). T is the part
    `tolerance` of n; with more gone the sum aborts.
    """

    variance: float
    tolerance: float
    layered: ClassVar[bool] = True

    @property
    def total_variation(self) -> float:
        return TOTAL_VARIATION

    @property
    def most(self) -> int:
        return math.ceil(40 * math.sqrt(self.variance)) + 100

    def count(self, clients: int) -> int:
        """T, never all of them."""
        return min(math.floor(self.tolerance * clients + 1e-9), clients - 1)

    def base(self, clients: int) -> SkellamShare:
        return SkellamShare(self.variance / clients)

    def layer(self, clients: int, number: int) -> SkellamShare:
        return SkellamShare(self.variance / ((clients - number + 1) * (clients - number)))

    def kept(self, clients: int, gone: int) -> SkellamShare:
        """What base and the first `gone` layers of one client are together."""
        return SkellamShare(self.variance / (clients - gone))

    def draw(self, keys: Keys, count: int) -> Whole:
        raise ValueError("layers are added by the secure sum")
