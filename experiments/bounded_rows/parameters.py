"""What a proof of a norm is made for, and how far it errs.

Rothblum, Omri, Chen & Talwar 2024 (PINE), section 4, with all tests of a wraparound to be passed
and a modulus so large that the lemma is elementary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from experiments.bounded_rows.field import MODULUS
from privfed.core.errors import Refused

_LONGEST = 2**21
"""Numbers of a row up to which a signed sum of their halves is exact in 64-bit floats."""


@dataclass(frozen=True)
class Parameters:
    """Rows of `length` whole numbers, whose Euclidean norm may be `bound` steps.

    `tests` is the number of random signed sums. Raises `Refused` where the field is too small.
    """

    length: int
    bound: int
    tests: int = 44
    completeness: float = 2.0**-40
    """The probability with which an honest row may be refused, at most."""

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
        """Bits of what is missing to the largest squared norm."""
        return self.square.bit_length()

    @property
    def width(self) -> int:
        """Bits of a signed sum, which has to be in [-2^(width - 1), 2^(width - 1)).

        Signs are 0 with probability 1/2, 1 and -1 with 1/4 each; E exp(s Z) = cosh(s / 2)^2 <=
        exp(s^2 / 4), so that a signed sum of a row of norm C reaches K with probability
        2 exp(-(K / C)^2) at most.
        """
        factor = math.sqrt(math.log(2 * max(self.tests, 1) / self.completeness))
        return math.ceil(math.log2(factor * self.bound)) + 1

    @property
    def bits(self) -> int:
        """Numbers that are proved to be 0 or 1."""
        return self.slack_bits + self.tests * self.width

    @property
    def points(self) -> int:
        """Points, a power of two, at which columns are polynomials.

        A proof has about length / points + 2 points numbers: fewest near sqrt(length / 2).
        """
        return 1 << max(2, round(math.log2(math.sqrt(self.length / 2))))

    @property
    def row_columns(self) -> int:
        """Columns of `points` - 1 numbers each that hold a row."""
        return -(-self.length // (self.points - 1))

    @property
    def bit_columns(self) -> int:
        """Columns that hold the bits."""
        return -(-self.bits // (self.points - 1))

    @property
    def columns(self) -> int:
        """Polynomials: of the row, of the bits, and of the weighted bits."""
        return self.row_columns + 2 * self.bit_columns

    @property
    def soundness(self) -> float:
        """The probability with which a row longer than `bound` is accepted, at most.

        Tests passed by chance, equations that cancel, and a wrong polynomial that is read where it
        is right.
        """
        degree = 2 * self.points - 1
        return 2.0**-self.tests + (1 + degree) / (MODULUS - 2 * self.points)

    @property
    def refusal(self) -> float:
        """The probability with which an honest row is refused, at most."""
        return 2 * self.tests * math.exp(-((2 ** (self.width - 1) / self.bound) ** 2))
