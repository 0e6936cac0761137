"""The noise of a release, as frozen values.

Numbers are converted to Python floats and ints on construction: dp-accounting silently drops terms
whose noise multiplier is an int or a NumPy scalar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from accounting.documents import Kinded
from accounting.errors import Unaccountable

LARGEST_NOISE = 1e9
_MOST = 10**12


@dataclass(frozen=True)
class Gaussian(Kinded):
    """The Gaussian mechanism: a vector plus N(0, (z s)^2 I), with s its L2 sensitivity.

    `noise_multiplier` is z = standard deviation / s. Under add/remove and zero-out s is the
    clipping norm, under replace-one twice the clipping norm: z includes this factor; accountants
    apply none. Zero means that no noise was added: such a release has no finite epsilon.
    """

    noise_multiplier: float
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        z = number(self.noise_multiplier, "noise multiplier", 0.0, LARGEST_NOISE)
        object.__setattr__(self, "noise_multiplier", z)


@dataclass(frozen=True)
class Skellam(Kinded):
    """An integer vector plus Skellam noise of `variance` in each coordinate, `exchanges` times.

    One client changes the vector by at most `l2` in L2 and `l1` in L1 norm. Exchanges over one
    cohort are one release: their divergences are added first, and then amplified by subsampling.
    """

    variance: float
    l2: float
    l1: float
    exchanges: int = 1
    kind: ClassVar[str] = "skellam"

    def __post_init__(self) -> None:
        for name in ("variance", "l2", "l1"):
            object.__setattr__(self, name, number(getattr(self, name), name, 0.0, 1e60))
        object.__setattr__(self, "exchanges", natural_number(self.exchanges, "exchanges"))

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of Gaussian noise of the same variance, for all exchanges together."""
        return math.sqrt(self.variance / self.exchanges) / self.l2 if self.l2 else math.inf


@dataclass(frozen=True)
class DiscreteGaussians(Kinded):
    """An integer vector plus a sum of `clients` discrete Gaussians in each of `length` coordinates.

    Each discrete Gaussian has the standard deviation `std`; `l2`, `l1` and `exchanges` are as in
    `Skellam`. If `std` is at least three grid steps, privfed charges the noise as `Gaussian`; it
    refuses a smaller `std`.
    """

    std: float
    clients: int
    l2: float
    l1: float
    length: int
    exchanges: int = 1
    kind: ClassVar[str] = "discrete_gaussians"

    def __post_init__(self) -> None:
        for name in ("std", "l2", "l1"):
            object.__setattr__(self, name, number(getattr(self, name), name, 0.0, 1e30))
        for name in ("clients", "length", "exchanges"):
            object.__setattr__(self, name, natural_number(getattr(self, name), name))

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of Gaussian noise of the same variance, for all exchanges together."""
        spread = self.std * math.sqrt(self.clients / self.exchanges)
        return spread / self.l2 if self.l2 else math.inf


IntegerNoise = Skellam | DiscreteGaussians
Noise = Gaussian | IntegerNoise


def same_cohort(noise_multiplier: float, exchanges: int) -> Gaussian:
    """Returns one release for `exchanges` Gaussian releases over one cohort, each at multiplier z.

    Gaussian mechanisms compose exactly (adaptively too: Dong, Roth & Su 2022, Corollary 3.3):
    k of them at z are one at z / sqrt(k).
    """
    return Gaussian(float(noise_multiplier) / math.sqrt(exchanges))


def number(value: Any, what: str, low: float, high: float) -> float:
    """Returns `value` as a float; `what` is its name in the error message.

    Raises `Unaccountable` unless it is a number (no boolean) in [low, high].
    """
    numeric = isinstance(value, int | float) or hasattr(value, "__float__")
    parsed = float(value) if numeric and not isinstance(value, bool) else None
    if parsed is None or not low <= parsed <= high:
        raise Unaccountable(f"{what} is {value!r}; expected a number in [{low:g}, {high:g}]")
    return parsed


def natural_number(value: Any, what: str, most: int = _MOST) -> int:
    """Returns `value` as an int; `what` is its name in the error message.

    Raises `Unaccountable` unless it is an integer, also as a float, in [1, `most`].
    """
    count = number(value, what, 1, most)
    if count != int(count):
        raise Unaccountable(f"{what} is {value!r}; expected an integer")
    return int(count)
