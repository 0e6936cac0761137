"""The proof that a statement's equation holds, and its verification by two servers on shares.

A fully linear proof (Boneh, Boyle, Corrigan-Gibbs, Gilboa & Ishai 2019, corollary 4.7). The lines
of the columns are values of polynomials at roots of unity. The quadratic form of the columns' lines
is one polynomial G of degree below twice the points. The proof holds the columns' random first line
and G's values at twice as many roots. G's values at the lines' roots sum to the quadratic part, and
a random point tests whether G is correct.

*One server learns nothing* about a valid row, whatever it asks or sends, provided the point is none
of the roots. The columns at the point are hidden by the random line, which enters with a non-zero
weight. The other server's messages follow from these values and from the first server's own share.
The other server answers each proof once, before it receives any part of the first one's answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.bounded_rows.field import MODULUS, Elements, add, combine, total
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.signs import Signs, signed_sums
from experiments.bounded_rows.statement import Weights, arranged, constant, linear, squares
from experiments.bounded_rows.transform import between, reading
from privfed.core.errors import Refused


@dataclass(frozen=True)
class Shares:
    """A server's shares of a client's `row`, `bits` and `proof`."""

    row: Elements
    bits: Elements
    proof: Elements


@dataclass(frozen=True)
class Point:
    """The weights that read the columns `[points]` and G `[2 points]` at a random point."""

    columns: Elements
    form: Elements

    @classmethod
    def at(cls, parameters: Parameters, point: int) -> Point:
        """Returns the weights at `point`. Raises `Refused` at the roots, where columns are not
        hidden.
        """
        if pow(point, 2 * parameters.points, MODULUS) in (0, 1):
            raise Refused("a point where columns are not hidden, expected another; draw again")
        return cls(reading(parameters.points, point), reading(2 * parameters.points, point))


@dataclass(frozen=True)
class Answer:
    """A server's shares of the columns and of G at the point, and of the equation's value."""

    columns: Elements
    form: Elements
    value: Elements


def prove(
    parameters: Parameters, weights: Weights, row: Elements, bits: Elements, masks: Elements
) -> Elements:
    """Returns the proof `[columns + 2 points]`, with uniform `masks` `[columns]` that are used
    once.
    """
    columns = arranged(parameters, weights, row, bits, masks)
    at_lines = squares(parameters, columns)
    beside = squares(parameters, between(columns))
    return np.concatenate([masks, np.stack([at_lines, beside], axis=1).ravel()])


def answer(
    parameters: Parameters,
    chosen: Signs,
    weights: Weights,
    point: Point,
    shares: Shares,
    first: bool,
) -> Answer:
    """Returns a server's message to the other one about its `shares`; the `first` adds the
    constant.
    """
    masks, form = np.split(shares.proof, [parameters.columns])
    columns = arranged(parameters, weights, shares.row, shares.bits, masks)
    sums = signed_sums(chosen, shares.row)
    value = add(total(form[2::2]), linear(parameters, weights, sums, shares.bits))
    if first:
        value = add(value, constant(parameters, weights))
    return Answer(combine(point.columns, columns), combine(point.form, form), value)


def accepted(parameters: Parameters, first: Answer, second: Answer) -> bool:
    """Whether the equation holds, and G equals the form of the columns."""
    form = squares(parameters, add(first.columns, second.columns)[None])
    holds = not add(first.value, second.value).any()
    return holds and bool((form == add(first.form, second.form)).all())
