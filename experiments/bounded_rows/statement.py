"""One quadratic equation that holds if a row is short enough.

In addition to the row x there are bits: of the slack C^2 - |x|^2, and of each signed sum y, raised
by half its range. With random weights a of the bits e and b of the tests, drawn after the bits are
shared,

    |x|^2 + slack - C^2 + sum a (e^2 - e) + sum b (y + 2^(width - 1) - its bits) = 0

modulo p. Squares are taken of columns (`arranged`); the rest is linear, and so computed on shares.

**Lemma.** If all bits are bits and all equations hold, a row longer than C passes a test with
probability at most 1/2. *Proof.* Take numbers between -p/2 and p/2. Suppose that one of them, x,
has an absolute value of 2^width or more. Given the other signs, with a sum s, a test is passed if s
+ z x is in an interval of 2^width numbers. If s is in it, neither s + x nor s - x is: passing
requires z = 0. If s is not in it, passing requires z unlike 0. Each has probability 1/2. Otherwise,
the sum of squares as an integer is below length 4^width <= p - 2^slack_bits, so it equals its value
modulo p. C^2 minus that sum fits into slack_bits bits only if the sum is at most C^2.

(PINE's lemma 4.3 admits a modulus that is smaller by about the length, by Berry and Esseen.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.bounded_rows.field import (
    MODULUS,
    Elements,
    add,
    centred,
    combine,
    multiply,
    powers,
    subtract,
    total,
    uniform,
)
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.signs import Signs, signed_sums


@dataclass(frozen=True)
class Weights:
    """Weights of the bits `[bits]` and of the tests `[tests]`."""

    bits: Elements
    tests: Elements

    @classmethod
    def of(cls, parameters: Parameters, key: bytes) -> Weights:
        """Returns the weights that `key` determines."""
        drawn = uniform(key, parameters.bits + parameters.tests)
        return cls(drawn[: parameters.bits], drawn[parameters.bits :])


def bits_of(parameters: Parameters, chosen: Signs, row: Elements) -> Elements:
    """Returns the bits `[bits]` of the slack and of the signed sums under `chosen`.

    A value out of range is cut to its lowest bits, and no proof of it holds.
    """
    slack = (parameters.square - sum(number**2 for number in centred(row))) % MODULUS
    half = 2 ** (parameters.width - 1)
    raised = [number + half for number in centred(signed_sums(chosen, row))]
    numbers = [(slack, parameters.slack_bits), *((y, parameters.width) for y in raised)]
    return np.array([n >> k & 1 for n, count in numbers for k in range(count)], np.uint64)


def fits(parameters: Parameters, chosen: Signs, row: Elements) -> bool:
    """Whether a proof for `row` is accepted; a client for which it is not does not take part."""
    half = 2 ** (parameters.width - 1)
    sums = centred(signed_sums(chosen, row))
    short = sum(number**2 for number in centred(row)) <= parameters.square
    return short and all(-half <= number < half for number in sums)


def arranged(
    parameters: Parameters, weights: Weights, row: Elements, bits: Elements, masks: Elements
) -> Elements:
    """Returns columns `[points, columns]` of the row, the bits, and the weighted bits, under
    `masks`.

    `masks` `[columns]` are the first line.
    """
    weighted = multiply(weights.bits, bits)
    lines = parameters.points - 1
    blocks = [
        np.pad(numbers, (0, lines * count - len(numbers))).reshape(lines, count)
        for numbers, count in (
            (row, parameters.row_columns),
            (bits, parameters.bit_columns),
            (weighted, parameters.bit_columns),
        )
    ]
    return np.concatenate([masks[None], np.concatenate(blocks, axis=1)])


def squares(parameters: Parameters, columns: Elements) -> Elements:
    """Returns the quadratic form of the columns `[k, columns]`: squares, and bits by weighted
    bits.
    """
    rows, bits = parameters.row_columns, parameters.row_columns + parameters.bit_columns
    factors = np.concatenate([columns[:, :rows], columns[:, bits:]], axis=1)
    return total(multiply(columns[:, :bits], factors).T)


def linear(parameters: Parameters, weights: Weights, sums: Elements, bits: Elements) -> Elements:
    """Returns the linear part `[1]` for signed `sums` `[tests]` and `bits` (or shares of them)."""
    slack = parameters.slack_bits
    places = multiply(weights.tests[:, None], powers(2, parameters.width)[None])
    gains = np.concatenate([powers(2, slack), np.zeros(places.size, np.uint64)])
    costs = np.concatenate([np.zeros(slack, np.uint64), places.ravel()])
    factors = subtract(subtract(gains, weights.bits), costs)
    return add(combine(factors, bits), combine(weights.tests, sums))


def constant(parameters: Parameters, weights: Weights) -> Elements:
    """Returns the constant part `[1]`."""
    half = np.array([2 ** (parameters.width - 1)], np.uint64)
    raised = combine(weights.tests, np.broadcast_to(half, weights.tests.shape))
    return subtract(raised, np.array([parameters.square % MODULUS], np.uint64))
