"""Norm bounds under masks: colluding Byzantine clients move the sum by little more than permitted.

Masked sums stay unchanged: one server, and integers. Once masked rows are sent, the server draws
signs Z of `projections` tests. Each client distributes to the cohort, by Shamir's scheme, its
signed sums u = Z x and a proof that u is as short as that of a row of norm C. The proof is that of
`proof.py`, for a row of `projections` numbers, and the cohort answers on its shares. A client that
is not accepted is treated as a dropout. Removing the masks of the others opens their total T. The
sum of their u is opened, and has to be Z T. Any `degree` members learn nothing about an honest row,
and the server learns only what T reveals.

**Theorem.** Suppose that the opened values are those that were shared (wrong shares are corrected,
or their holders or dealers left out). Let D be the accepted T minus the rows of honest clients, for
any messages of the Byzantine clients and any masking partners, and let L be the number of Byzantine
clients. Except with probability 2^(L - 40) (2^-40 for L = 1, plus the proofs' error), |D| <
`factor` L C.

*Proof.* Honest clients' u are those of their rows, so the Byzantine clients' u sum to Z D. Each of
these is proved to have norm at most B, so |Z D| <= L B. Z was drawn after D was fixed, except for
the subset of Byzantine clients that are in T: there are 2^L - 1 non-empty subsets, and the
following holds for each. A signed sum Y of D has E Y^2 = |D|^2 / 2 and E Y^4 <= 3 |D|^4 / 4. Y^2 is
not negative, so the sum of r of them is below (1 - e) r |D|^2 / 2 with probability at most exp(-e^2
r / 6) (Maurer 2003, (1.1)). If |D| >= `factor` L C, that is at least L^2 B^2. An honest u is too
long with probability at most 2^-40: Y is sub-Gaussian with variance C^2 / 2, and |u|^2 has the tail
of chi squared (Laurent & Massart 2000, lemma 1): B^2 = C^2 (r + 2 sqrt(r x) + 2 x) / 2 with x = 40
ln 2.

Single rows of colluding clients are not bounded, but they have no effect either: what one of them
adds and another subtracts is not part of the sum. No client is identified if Z T is not met; the
sum is discarded.
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
    """Rows of `length` numbers of norm `bound`, with proofs about `projections` signed sums of
    each.
    """

    length: int
    bound: int
    projections: int = 512

    @property
    def proved(self) -> Parameters:
        """The proved norm of the signed sums, which honest rows exceed with probability at most
        2^-40.
        """
        r, x = self.projections, _EXPONENT
        spread = (r + 2 * math.sqrt(r * x) + 2 * x) / 2
        return Parameters(r, math.ceil(math.sqrt(spread) * self.bound))

    @property
    def factor(self) -> float:
        """Upper bound on the colluding clients' effect on the sum, over the permitted one."""
        least = (1 - math.sqrt(6 * _EXPONENT / self.projections)) * self.projections / 2
        return self.proved.bound / self.bound / math.sqrt(least) if least > 0 else math.inf


def deal(secret: Elements, members: int, degree: int, key: bytes) -> Elements:
    """Returns Shamir shares `[members, k]` of `secret` `[k]`, at 1, 2, and so on (Shamir 1979).

    Any `degree` of them reveal nothing. `key` `[32]`, which determines the coefficients, is used
    once.
    """
    shares = np.zeros((members, len(secret)), np.uint64)
    coefficients = uniform(key, degree * len(secret)).reshape(degree, -1)
    places = np.arange(1, members + 1, dtype=np.uint64).reshape(-1, 1)
    for line in coefficients:
        shares = multiply(add(shares, line[None]), places)
    return add(shares, secret[None])


def opened(places: list[int], shares: Elements) -> Elements:
    """Returns the secret `[k]` of `shares` `[m, k]` at `places` `[m]`, more than their degree."""
    weights = []
    for place in places:
        weight = 1
        for other in places:
            if other != place:
                weight = weight * other * pow(other - place, -1, MODULUS) % MODULUS
        weights.append(weight)
    return combine(np.array(weights, np.uint64), shares)


def opened_answer(places: list[int], answers: list[Answer]) -> tuple[Answer, Answer]:
    """Returns the joint answer of the members at `places`, and a zero answer, as a pair to
    verify.
    """
    columns, form, value = (
        opened(places, np.stack([getattr(each, name) for each in answers]))
        for name in ("columns", "form", "value")
    )
    nothing = Answer(np.zeros_like(columns), np.zeros_like(form), np.zeros_like(value))
    return Answer(columns, form, value), nothing
