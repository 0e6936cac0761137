"""The parameters of a norm proof, and its error probabilities.

Rothblum, Omri, Chen & Talwar 2024 (PINE), section 4, with the requirement that all wraparound tests
pass and a modulus large enough for an elementary lemma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from experiments.bounded_rows.field import MODULUS
from privfed.core.errors import Refused

_LONGEST = 2**21
"""Length of a row up to which a signed sum of halves of its numbers is exact in float64."""


@dataclass(frozen=True)
class Parameters:
    """Rows of `length` integers with Euclidean norm at most `bound` steps.

    `tests` is the number of random signed sums. Raises `Refused` if the field is too small.
    """

    length: int
    bound: int
    tests: int = 44
    completeness: float = 2.0**-40
    """Largest probability with which an honest row may be refused."""

    def __post_init__(self) -> None:
        room = self.length * 4**self.width + 2**self.slack_bits
        if self.length > _LONGEST or room > MODULUS:
            raise Refused(
                f"rows of {self.length} numbers of norm {self.bound} need a modulus of "
                f"{room.bit_length()} bits (and at most {_LONGEST} numbers), expected 64; "
                "round rows to coarser steps"
            )

    @property
    def square(self) -> int:
        """The largest squared norm."""
        return self.bound**2

    @property
    def slack_bits(self) -> int:
        """Number of bits of the difference to the largest squared norm."""
        return self.square.bit_length()

    @property
    def width(self) -> int:
        """Number of bits of a signed sum, which has to be in [-2^(width - 1), 2^(width - 1)).

        Signs are 0 with probability 1/2, 1 and -1 with 1/4 each. E exp(s Z) = cosh(s / 2)^2 <=
        exp(s^2 / 4), so a signed sum of a row of norm C reaches K with probability at most 2
        exp(-(K / C)^2).
        """
        factor = math.sqrt(math.log(2 * max(self.tests, 1) / self.completeness))
        return math.ceil(math.log2(factor * self.bound)) + 1

    @property
    def bits(self) -> int:
        """Number of values that are proved to be 0 or 1."""
        return self.slack_bits + self.tests * self.width

    @property
    def points(self) -> int:
        """Number of points, a power of two, at which columns are polynomials.

        A proof has about length / points + 2 points numbers, fewest near sqrt(length / 2).
        """
        return 1 << max(2, round(math.log2(math.sqrt(self.length / 2))))

    @property
    def row_columns(self) -> int:
        """Number of columns of `points` - 1 numbers each that hold a row."""
        return -(-self.length // (self.points - 1))

    @property
    def bit_columns(self) -> int:
        """Number of columns that hold the bits."""
        return -(-self.bits // (self.points - 1))

    @property
    def columns(self) -> int:
        """Number of polynomials: of the row, of the bits, and of the weighted bits."""
        return self.row_columns + 2 * self.bit_columns

    @property
    def soundness(self) -> float:
        """Upper bound on the probability that a row longer than `bound` is accepted.

        It covers tests passed by chance, equations that cancel, and a wrong polynomial that is
        evaluated at a point where it is correct.
        """
        degree = 2 * self.points - 1
        return 2.0**-self.tests + (1 + degree) / (MODULUS - 2 * self.points)

    @property
    def refusal(self) -> float:
        """Upper bound on the probability that an honest row is refused."""
        return 2 * self.tests * math.exp(-((2 ** (self.width - 1) / self.bound) ** 2))
