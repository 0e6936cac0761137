"""The random number of repetitions of a mechanism that releases only its best answer.

The number of repetitions must be secret and random (Papernot & Steinke 2022): the best of a fixed,
known number of answers reveals far more than a single answer.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass

from accounting.documents import Encoded
from accounting.errors import Unaccountable
from accounting.noises import number

MOST_EXPECTED = 10_000.0
"""Largest expected number of repetitions."""
BITS = 192
"""Number of uniform random bits used by `Repetitions.number`."""
_LEAST_GAMMA, _MOST_SHAPE = 1e-6, 100.0
_DIGITS = 80
_ROUNDED_UP = 1 + 1e-12


@dataclass(frozen=True)
class Repetitions(Encoded):
    """The truncated negative binomial law of a number K >= 1 (Papernot & Steinke 2022, Def. 1).

    With the `shape` η >= 0 and 0 < `gamma` <= 1, P[K = k] is proportional to (1 - γ)^k Π_{l < k} (l
    + η) / (l + 1), without k = 0: geometric for η = 1, logarithmic for η = 0. With γ = 1, K is
    always 1.
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
        """Returns the law of this shape and mean. Raises `Unaccountable` if there is none."""
        mean = number(mean, "expected number of repetitions", 1.0, MOST_EXPECTED)
        if mean == 1.0:
            return cls(shape, 1.0)

        def excess(log_gamma: float) -> float:
            return cls(shape, math.exp(log_gamma)).mean - mean

        from scipy.optimize import brentq  # imported here, since readers of ledgers do not need it

        low = math.log(_LEAST_GAMMA)
        if excess(low) < 0.0:
            raise Unaccountable(
                f"the expectation is {mean:g}, but no distribution of shape {shape:g} has that "
                "expectation; choose another expectation"
            )
        return cls(shape, math.exp(brentq(excess, low, math.log(1 - 1e-12), xtol=1e-13)))

    @property
    def mean(self) -> float:
        """Expectation of K, times 1 + 1e-12 so that rounding errors do not make it too small."""
        if self.gamma == 1.0:
            return 1.0
        log = math.log(self.gamma)
        if self.shape * -log < 1e-9:  # the limit at shape 0 from above, in float precision
            return (1 / self.gamma - 1) / -log * _ROUNDED_UP * (1 + self.shape * -log)
        mean = self.shape * (1 / self.gamma - 1) / -math.expm1(self.shape * log)
        return mean * _ROUNDED_UP

    def generating(self, x: float) -> float:
        """Returns E[x^K]: P[no repetition has a property of probability 1 - x], 0 <= x <= 1."""
        if self.gamma == 1.0:
            return x
        if self.shape == 0.0:
            return math.log1p(-(1 - self.gamma) * x) / math.log(self.gamma)
        grown = math.expm1(-self.shape * math.log1p(-(1 - self.gamma) * x))
        return grown / math.expm1(-self.shape * math.log(self.gamma))

    def number(self, bits: int) -> int:
        """Returns K for a uniform integer `bits` of `BITS` bits, by inverting its distribution.

        K is computed to 80 digits: its total variation distance from the law is below 1e-50, and
        delta increases by (1 + e^ε) times that distance.
        """
        with decimal.localcontext() as context:
            context.prec = _DIGITS
            left = decimal.Decimal(bits) / decimal.Decimal(2) ** BITS
            least = decimal.Decimal(10) ** -(_DIGITS - 10)
            mass, growth, k = self._first_mass(), self._growth(1), 1
            while left >= mass and (mass > least or growth > 1):  # masses may rise before they fall
                left -= mass
                mass *= growth
                k += 1
                growth = self._growth(k)
            return k

    def _growth(self, k: int) -> decimal.Decimal:
        """Returns P[K = k + 1] / P[K = k], which is above 1 only before the mode."""
        gamma, shape = decimal.Decimal(self.gamma), decimal.Decimal(self.shape)
        return (1 - gamma) * (k + shape) / (k + 1)

    def _first_mass(self) -> decimal.Decimal:
        """Returns P[K = 1], in the precision of the caller's decimal context."""
        gamma, shape = decimal.Decimal(self.gamma), decimal.Decimal(self.shape)
        if gamma == 1:
            return decimal.Decimal(1)
        if shape == 0:
            return (1 - gamma) / -gamma.ln()
        return shape * (1 - gamma) / (gamma**-shape - 1)
