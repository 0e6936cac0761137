"""Sensitivity of C x for lower-triangular Toeplitz C, where a client's columns overlap.

C `[T, T]` has the column c = (c_0, c_1, ...) from its diagonal downwards. A client takes part in
rounds t_1 < t_2 < ... of 1..T, two of which are at least b apart, with a vector x_i of norm at most
1 in each. Zeroing them out changes C x by sum_i x_i (column t_i), whose norm is the sensitivity.

*Theorem.* If c_0 >= c_1 >= ... >= 0, the sensitivity is at most, and in the worst case equal to,
the norm of the sum of columns 1, 1 + b, ..., 1 + (k - 1) b, with k = ceil(T / b).

*Proof.* The squared norm is sum_ij <x_i, x_j> G(t_i, t_j), G(s, t) the product of columns s and t.
For s <= t it is G(s, t) = sum_r c_r c_(r + t - s) over 0 <= r <= T - t: nonnegative, so <x_i, x_j>
<= 1 may be replaced by 1, for vectors of any length and direction. With the gap t - s fixed it
grows with the T - t + 1 remaining rows, since its terms are nonnegative; with t fixed it decreases
as the gap grows, as c does. Now t_j >= 1 + (j - 1) b, so no pair of participations has more rows
left than the same pair of the pattern above; and t_j - t_i >= (j - i) b, so none has a smaller gap.
Each product is therefore at most the pattern's, there are at most k participations, and the
pattern's further products are nonnegative. Equal vectors of norm 1 attain it. ∎

Taking part every b rounds from round 1 on is thus the worst: earliest, closest, most often. The
same comparison shows that fewer rounds than T have no larger sensitivity: each product loses terms,
and there are no more participations. If c increases somewhere, a larger gap may weigh more, and
the formula fails.

Vectors and releases may depend on earlier releases: with Gaussian noise on C x the guarantee is
that of the same C for fixed x, since C is lower-triangular (Denisov et al. 2022, Theorem 2.1). The
rounds in which a client takes part must keep the separation whatever is released.

*Buffered* columns are c_0 = 1, c_i = sum_j omega_j theta_j^(i - 1) (Dvijotham et al. 2024, arXiv
2404.16706), with decays theta and outputs omega. If omega >= 0, 0 <= theta < 1 and the sum of omega
is at most 1, then c_1 <= c_0, and no later term grows: the theorem holds (`refuse_unproven`).

Source: Kalinin & Lampert 2024, arXiv 2405.13763, Theorem 2. Sums have no negative terms, so
rounding changes them by less than one part in 10^9 for up to 10^6 rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from accounting.errors import Unaccountable

Column = NDArray[np.float64]


def refuse_unproven(decays: Sequence[float], outputs: Sequence[float]) -> None:
    """Raises `Unaccountable` unless the buffered column is nonnegative and never increases.

    The condition holds if there are as many outputs as decays, at least one, all are finite, the
    outputs are nonnegative and sum to at most 1 (exactly, as floats), and decays are in [0, 1).
    """
    if len(decays) != len(outputs) or not len(decays):
        raise Unaccountable(
            f"there are {len(decays)} decays and {len(outputs)} outputs of buffers; expected "
            "equally many, and at least one; give each buffer a decay and an output"
        )
    for decay in decays:
        if not 0.0 <= decay < 1.0:
            raise Unaccountable(
                f"the decay of a buffer is {decay!r}; expected a number in [0, 1), since otherwise "
                "the sensitivity has no proof; remove decays and outputs: privfed solves for them"
            )
    for output in outputs:
        if not 0.0 <= output <= 1.0:
            raise Unaccountable(
                f"the output of a buffer is {output!r}; expected a number in [0, 1], since "
                "otherwise the sensitivity has no proof; remove decays and outputs: privfed solves "
                "for them"
            )
    if sum(map(Fraction, map(float, outputs))) > 1:
        raise Unaccountable(
            f"the outputs of the buffers sum to {math.fsum(outputs)!r}, but a sum above 1 makes "
            "the column of the Toeplitz matrix increase; remove decays and outputs: privfed solves "
            "for them"
        )


def buffered_column(decays: Sequence[float], outputs: Sequence[float], rounds: int) -> Column:
    """Returns the column c `[rounds]`: c_0 = 1, c_i = sum_j outputs_j decays_j^(i - 1).

    Raises `Unaccountable` for fewer than one round.
    """
    column = np.zeros(_count(rounds, "number of rounds"))
    for decay, output in zip(decays, outputs, strict=True):
        column[1:] += output * powers(decay, rounds - 1)
    column[0] = 1.0
    return column


def powers(base: float, count: int) -> Column:
    """Returns the powers `[count]` of `base` from exponent 0, each as a product of two powers."""
    stride = max(1, math.isqrt(count))
    small = np.power(float(base), np.arange(stride))
    large = np.power(float(base), stride * np.arange(-(-count // stride)))
    return np.outer(large, small).ravel()[:count]


def sum_of_shifts(column: Column, separation: int) -> Column:
    """Returns the sum `[T]` of `column` `[T]` shifted down by 0, b, 2 b, ... rows, cut after row T.

    Raises `Unaccountable` for a separation b below one.
    """
    rounds = len(column)
    stride = min(_count(separation, "separation"), rounds)
    blocks = np.zeros((-(-rounds // stride), stride))
    blocks.ravel()[:rounds] = column
    return np.asarray(blocks.cumsum(axis=0).ravel()[:rounds])


def buffered_sensitivity(
    decays: Sequence[float], outputs: Sequence[float], separation: int, rounds: int
) -> float:
    """Returns the L2 sensitivity of C x, C the buffered Toeplitz matrix, exact up to rounding.

    Args:
      decays: decays theta of the buffers, shape [d].
      outputs: outputs omega of the buffers, shape [d].
      separation: least number of rounds between two participations of a client, whose vectors have
        norm at most 1.
      rounds: number of rows of C.

    Raises:
      Unaccountable: if there is no proof, or if `separation` or `rounds` is below one.
    """
    refuse_unproven(decays, outputs)
    return float(
        np.linalg.norm(sum_of_shifts(buffered_column(decays, outputs, rounds), separation))
    )


def column_norm(decays: Sequence[float], outputs: Sequence[float]) -> float:
    """Returns the L2 norm of the buffered column over infinitely many rounds, in closed form.

    (1 + sum_ij omega_i omega_j / (1 - theta_i theta_j))^(1/2). The norm bounds the sensitivity of a
    single participation. Raises `Unaccountable` as `refuse_unproven` does.
    """
    refuse_unproven(decays, outputs)
    theta, omega = np.asarray(decays, dtype=float), np.asarray(outputs, dtype=float)
    left = 1 - theta  # exact near 1, where 1 - theta_i theta_j would lose its digits
    products = np.outer(omega, omega) / (left[:, None] + np.outer(theta, left))
    return math.sqrt(1 + float(products.sum()))


def _count(value: int, what: str) -> int:
    if value < 1 or value != int(value):
        raise Unaccountable(f"the {what} is {value!r}; expected an integer of at least 1")
    return int(value)
