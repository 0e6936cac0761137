"""One quadratic equation that holds where a row is short enough.

Beside the row x there are bits: of the slack C^2 - |x|^2, and of each signed sum y, raised by half
its range. With random weights a of the bits e and b of the tests, drawn once bits are shared,

    |x|^2 + slack - C^2 + sum a (e^2 - e) + sum b (y + 2^(width - 1) - its bits) = 0

modulo p. Squares are taken of columns (`arranged`); the rest is linear, and so computed on shares.

**Lemma.** Where all bits are bits, and all equations hold, a row longer than C passes a test with
probability 1/2 at most. *Proof.* Numbers are meant between -p/2 and p/2. Let one be 2^width or more
from 0. Given the other signs, with a sum s, a test is passed where s + z x is in an interval of
2^width numbers. If s is, neither s + x nor s - x is: passing takes z = 0, or z unlike 0, each of
probability 1/2. Else the squares' sum is below length 4^width <= p - 2^slack_bits as a whole
number: it is what it is modulo p, and C^2 less it has slack_bits bits only where it is C^2 at most.

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
        """The weights that `key` determines."""
        drawn = uniform(key, parameters.bits + parameters.tests)
        return cls(drawn[: parameters.bits], drawn[parameters.bits :])


def bits_of(parameters: Parameters, chosen: Signs, row: Elements) -> Elements:
    """The bits `[bits]` of the slack and of the signed sums under `chosen`.

    What is out of range is cut to its lowest bits: no proof of it holds.
    """
    slack = (parameters.square - sum(number**2 for number in centred(row))) % MODULUS
    half = 2 ** (parameters.width - 1)
    raised = [number + half for number in centred(signed_sums(chosen, row))]
    numbers = [(slack, parameters.slack_bits), *((y, parameters.width) for y in raised)]
    return np.array([n >> k & 1 for n, count in numbers for k in range(count)], np.uint64)


def fits(parameters: Parameters, chosen: Signs, row: Elements) -> bool:
    """Whether a proof for `row` is accepted; who sees that it is not stays away."""
    half = 2 ** (parameters.width - 1)
    sums = centred(signed_sums(chosen, row))
    short = sum(number**2 for number in centred(row)) <= parameters.square
    return short and all(-half <= number < half for number in sums)


def arranged(
    parameters: Parameters, weights: Weights, row: Elements, bits: Elements, masks: Elements
) -> Elements:
    """Columns `[points, columns]`: of the row, the bits, and the weighted bits, under `masks`.

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
    """What the columns `[k, columns]` of a line come to: squares, and bits by weighted bits."""
    rows, bits = parameters.row_columns, parameters.row_columns + parameters.bit_columns
    factors = np.concatenate([columns[:, :rows], columns[:, bits:]], axis=1)
    return total(multiply(columns[:, :bits], factors).T)


def linear(parameters: Parameters, weights: Weights, sums: Elements, bits: Elements) -> Elements:
    """The linear part `[1]` for signed `sums` `[tests]` and `bits` (or shares of them)."""
    slack = parameters.slack_bits
    places = multiply(weights.tests[:, None], powers(2, parameters.width)[None])
    gains = np.concatenate([powers(2, slack), np.zeros(places.size, np.uint64)])
    costs = np.concatenate([np.zeros(slack, np.uint64), places.ravel()])
    factors = subtract(subtract(gains, weights.bits), costs)
    return add(combine(factors, bits), combine(weights.tests, sums))


def constant(parameters: Parameters, weights: Weights) -> Elements:
    """The constant part `[1]`."""
    half = np.array([2 ** (parameters.width - 1)], np.uint64)
    raised = combine(weights.tests, np.broadcast_to(half, weights.tests.shape))
    return subtract(raised, np.array([parameters.square % MODULUS], np.uint64))
