"""Bounds under masks: liars together move the sum by little more than they may.

Masked sums stay as they are: one server, and whole numbers. Once masked rows are sent, the server
draws signs Z of as many tests as `projections`, and each client deals to the cohort, by Shamir's
scheme, its signed sums u = Z x and a proof that u is as short as that of a row of norm C is: the
proof of `proof.py`, of a row of `projections` numbers, which the cohort answers on its shares. Who
is not accepted is dropped out. Masks of the rest are taken off, which opens their total T; the sum
of their u is opened, and has to be Z T. Any `degree` members learn nothing of an honest row, and
the server what T tells.

**Theorem.** Let what is opened be what was dealt (wrong shares are corrected, or their holders or
dealers left out). Of what is accepted, let D be T less the rows of honest clients, whatever the
liars sent and whoever they masked with, and L the number of liars. But for probability 2^(L - 40)
(2^-40 where L = 1, and the proofs' error), |D| < `factor` L C.

*Proof.* Honest clients' u are those of their rows, so that the liars' sum up to Z D, and as each
is as short as is proved, of norm B, |Z D| <= L B. Z was drawn when D was fixed, but for which of
the liars are in T: 2^L - 1 choices of some, for each of which the rest holds. A signed sum Y of D
has E Y^2 = |D|^2 / 2 and E Y^4 <= 3 |D|^4 / 4; Y^2 is not negative, so that the sum of r of
them is below (1 - e) r |D|^2 / 2 with probability exp(-e^2 r / 6) at most (Maurer 2003, (1.1)).
Where |D| >= `factor` L C that is L^2 B^2 at least. An honest u is too long with probability 2^-40
at most: Y is sub-Gaussian with variance C^2 / 2, and |u|^2 has the tail of chi squared (Laurent &
Massart 2000, lemma 1): B^2 = C^2 (r + 2 sqrt(r x) + 2 x) / 2 with x = 40 ln 2.

Single rows of clients that collude are not bounded, but nor are they anything: what one adds and
another takes off is no part of the sum. Nobody is named where Z T is not met: the sum is discarded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from experiments.bounded_rows.field import MODULUS, Elements, add, combine, multiply, uniform
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.proof import Answer

_EXPONENT = 40 * math.log(2)


@dataclass(frozen=True)
class Projected:
    """Rows of `length` numbers of norm `bound`, of which `projections` signed sums are proved."""

    length: int
    bound: int
    projections: int = 512

    @property
    def proved(self) -> Parameters:
        """What is proved of the signed sums: a norm that honest rows' exceed with 2^-40 at most."""
        r, x = self.projections, _EXPONENT
        spread = (r + 2 * math.sqrt(r * x) + 2 * x) / 2
        return Parameters(r, math.ceil(math.sqrt(spread) * self.bound))

    @property
    def factor(self) -> float:
        """How many times what is allowed liars together may move the sum, at most."""
        least = (1 - math.sqrt(6 * _EXPONENT / self.projections)) * self.projections / 2
        return self.proved.bound / self.bound / math.sqrt(least) if least > 0 else math.inf


def deal(secret: Elements, members: int, degree: int, key: bytes) -> Elements:
    """Shamir shares `[members, k]` of `secret` `[k]`, at 1, 2, and so on (Shamir 1979).

    Any `degree` of them say nothing; `key` `[32]`, with which coefficients are drawn, is used once.
    """
    shares = np.zeros((members, len(secret)), np.uint64)
    coefficients = uniform(key, degree * len(secret)).reshape(degree, -1)
    places = np.arange(1, members + 1, dtype=np.uint64).reshape(-1, 1)
    for line in coefficients:
        shares = multiply(add(shares, line[None]), places)
    return add(shares, secret[None])


def opened(places: list[int], shares: Elements) -> Elements:
    """The secret `[k]` of the `shares` `[m, k]` at `places` `[m]`, more than their degree."""
    weights = []
    for place in places:
        weight = 1
        for other in places:
            if other != place:
                weight = weight * other * pow(other - place, -1, MODULUS) % MODULUS
        weights.append(weight)
    return combine(np.array(weights, np.uint64), shares)


def opened_answer(places: list[int], answers: list[Answer]) -> tuple[Answer, Answer]:
    """What the members at `places` answered together, and nothing, as a pair to be judged."""
    columns, form, value = (
        opened(places, np.stack([getattr(each, name) for each in answers]))
        for name in ("columns", "form", "value")
    )
    nothing = Answer(np.zeros_like(columns), np.zeros_like(form), np.zeros_like(value))
    return Answer(columns, form, value), nothing
