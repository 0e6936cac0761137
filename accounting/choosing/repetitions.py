"""How often a mechanism is repeated where the best of its answers is released: by chance.

The number of repetitions has to be secret and random (Papernot & Steinke 2022): the best of a
number that is fixed and known tells far more than one of them does.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass

from scipy.optimize import brentq

from accounting.documents import Encoded
from accounting.errors import Unaccountable
from accounting.noises import number

MOST_EXPECTED = 10_000.0
"""The largest expected number of repetitions that is drawn from."""
BITS = 192
"""How many fair bits `Repetitions.number` takes."""
_LEAST_GAMMA, _MOST_SHAPE = 1e-6, 100.0
_DIGITS = 80
_ROUNDED_UP = 1 + 1e-12


@dataclass(frozen=True)
class Repetitions(Encoded):
    """The truncated negative binomial law of a number K >= 1 (Papernot & Steinke 2022, Def. 1).

    With the `shape` η >= 0 and 0 < `gamma` <= 1, P[K = k] is in proportion to
    (1 - γ)^k Π_{l < k} (l + η) / (l + 1), without k = 0: geometric for η = 1, logarithmic for
    η = 0. γ = 1 is K = 1 always.
    """

    shape: float
    gamma: float

    def __post_init__(self) -> None:
        shape = number(self.shape, "shape of the repetitions", 0.0, _MOST_SHAPE)
        gamma = number(self.gamma, "gamma of the repetitions", _LEAST_GAMMA, 1.0)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "gamma", gamma)

    @classmethod
    def with_mean(cls, shape: float, mean: float) -> Repetitions:
        """The law of this shape whose expectation is `mean`. Raises `Unaccountable`."""
        mean = number(mean, "expected number of repetitions", 1.0, MOST_EXPECTED)
        if mean == 1.0:
            return cls(shape, 1.0)

        def excess(log_gamma: float) -> float:
            return cls(shape, math.exp(log_gamma)).mean - mean

        low = math.log(_LEAST_GAMMA)
        if excess(low) < 0.0:
            raise Unaccountable(f"no law of shape {shape:g} has the expectation {mean:g}")
        return cls(shape, math.exp(brentq(excess, low, math.log(1 - 1e-12), xtol=1e-13)))

    @property
    def mean(self) -> float:
        """The expectation of K, rounded up."""
        if self.gamma == 1.0:
            return 1.0
        log = math.log(self.gamma)
        if self.shape * -log < 1e-9:  # the limit at shape 0 from above, as near as floats tell
            return (1 / self.gamma - 1) / -log * _ROUNDED_UP * (1 + self.shape * -log)
        mean = self.shape * (1 / self.gamma - 1) / -math.expm1(self.shape * log)
        return mean * _ROUNDED_UP

    def generating(self, x: float) -> float:
        """The expectation of x^K, for 0 <= x <= 1: P[no repetition is of a kind of chance 1 - x]"""
        if self.gamma == 1.0:
            return x
        if self.shape == 0.0:
            return math.log1p(-(1 - self.gamma) * x) / math.log(self.gamma)
        grown = math.expm1(-self.shape * math.log1p(-(1 - self.gamma) * x))
        return grown / math.expm1(-self.shape * math.log(self.gamma))

    def number(self, bits: int) -> int:
        """K, as `BITS` fair bits decide, by inverting its distribution function.

        It is computed to 80 digits: what is drawn differs from the law by a total variation below
        1e-50, of which (1 + e^ε) times would be lost in any δ.
        """
        with decimal.localcontext() as context:
            context.prec = _DIGITS
            left = decimal.Decimal(bits) / decimal.Decimal(2) ** BITS
            least = decimal.Decimal(10) ** -(_DIGITS - 10)
            mass, growth, k = self._first_mass(), self._growth(1), 1
            while left >= mass and (mass > least or growth > 1):  # it may begin below, and rise
                left -= mass
                mass *= growth
                k += 1
                growth = self._growth(k)
            return k

    def _growth(self, k: int) -> decimal.Decimal:
        """P[K = k + 1] / P[K = k], in the caller's arithmetic; above 1 before the mode alone."""
        gamma, shape = decimal.Decimal(self.gamma), decimal.Decimal(self.shape)
        return (1 - gamma) * (k + shape) / (k + 1)

    def _first_mass(self) -> decimal.Decimal:
        """P[K = 1], in the arithmetic of the caller's context."""
        gamma, shape = decimal.Decimal(self.gamma), decimal.Decimal(self.shape)
        if gamma == 1:
            return decimal.Decimal(1)
        if shape == 0:
            return (1 - gamma) / -gamma.ln()
        return shape * (1 - gamma) / (gamma**-shape - 1)
