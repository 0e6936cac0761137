"""Byzantine clients with a row that is too long, one for each check that should detect them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.bounded_rows.field import MODULUS, Elements, add, centred, subtract, uniform
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.proof import Answer, Point, Shares, accepted, answer, prove
from experiments.bounded_rows.signs import Signs, signed_sums, signs
from experiments.bounded_rows.statement import Weights, bits_of
from privfed.secure.primitives import KEY


@dataclass(frozen=True)
class Cheat:
    """An attack on the proof: `bits` that are not bits, and a form `balanced` to sum to zero."""

    bits: bool = False
    balanced: bool = False


def wrapping_row(parameters: Parameters) -> Elements:
    """Returns a row `[length]` of squared norm 1 + 2^96, which is 0 modulo p.

    A signed sum of it is in range if the sign of the second number is 0: in half of all tests.
    """
    row = np.zeros(parameters.length, np.uint64)
    row[:2] = 1, 2**48
    return row


def large_bits(parameters: Parameters, chosen: Signs, row: Elements) -> Elements:
    """Returns `bits` with arbitrarily large integers as lowest bits: all linear sums are right."""
    half = 2 ** (parameters.width - 1)
    slack = parameters.square - sum(number**2 for number in centred(row))
    raised = add(signed_sums(chosen, row), np.array([half], np.uint64))
    bits = np.zeros(parameters.bits, np.uint64)
    bits[0] = slack % MODULUS
    bits[parameters.slack_bits :: parameters.width] = raised
    return bits


def answers(
    parameters: Parameters,
    row: Elements,
    cheat: Cheat,
    source: np.random.Generator,
    weights: Weights | None = None,
) -> tuple[Answer, Answer]:
    """Returns both servers' answers for `row` `[length]`, to challenges of `source` (or
    `weights`).
    """
    chosen = signs(source.bytes(KEY), parameters.tests, parameters.length)
    weights = weights or Weights.of(parameters, source.bytes(KEY))
    point = Point.at(parameters, int(uniform(source.bytes(KEY), 1)[0]))
    bits = (large_bits if cheat.bits else bits_of)(parameters, chosen, row)
    proof = prove(parameters, weights, row, bits, uniform(source.bytes(KEY), parameters.columns))
    if cheat.balanced:
        bare = answer(parameters, chosen, weights, point, Shares(row, bits, proof), True)
        place = parameters.columns + 2
        proof[place : place + 1] = subtract(proof[place : place + 1], bare.value)
    first, second = _shared(Shares(row, bits, proof), source)
    return (
        answer(parameters, chosen, weights, point, first, True),
        answer(parameters, chosen, weights, point, second, False),
    )


def passes(
    parameters: Parameters, row: Elements, cheat: Cheat, source: np.random.Generator
) -> bool:
    """Whether both servers accept `row` `[length]`, under challenges of `source`."""
    return accepted(parameters, *answers(parameters, row, cheat, source))


def _shared(secret: Shares, source: np.random.Generator) -> tuple[Shares, Shares]:
    numbers = (secret.row, secret.bits, secret.proof)
    second = [uniform(source.bytes(KEY), len(each)) for each in numbers]
    first = [subtract(each, share) for each, share in zip(numbers, second, strict=True)]
    return Shares(*first), Shares(*second)
