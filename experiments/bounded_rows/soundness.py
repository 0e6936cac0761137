"""Measured acceptance rates of rows that are too long and of honest rows, next to the bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.bounded_rows.cheats import Cheat, passes, wrapping_row
from experiments.bounded_rows.costs import row_of
from experiments.bounded_rows.field import Elements, elements
from experiments.bounded_rows.parameters import Parameters

_CHEATS = {
    "a row of ten times the norm, bits cut": Cheat(),
    "the same, integers as bits": Cheat(bits=True),
    "the same, bits cut, the form balanced": Cheat(balanced=True),
}


@dataclass(frozen=True)
class Trial:
    """The number of `trials` rows that were accepted; `bound` is an upper bound on the
    probability.
    """

    row: str
    length: int
    tests: int
    trials: int
    accepted: int
    bound: float


def few_tests(length: int, trials: int, source: np.random.Generator) -> Iterator[Trial]:
    """Yields trials of the row that wraps around, against none to six tests: the lemma's 1/2
    occurs.
    """
    for tests in range(7):
        parameters = Parameters(length, 1_000, tests=tests)
        row = wrapping_row(parameters)
        yield _tried("(1, 2^48, 0, ...)", parameters, Cheat(), row, trials, source)


def all_tests(parameters: Parameters, trials: int, source: np.random.Generator) -> Iterator[Trial]:
    """Yields every attack against all tests, and honest rows, for which `bound` is 1."""
    wrapping = wrapping_row(parameters)
    yield _tried("(1, 2^48, 0, ...)", parameters, Cheat(), wrapping, trials, source)
    for name, cheat in _CHEATS.items():
        long = elements(10 * row_of(parameters, source))
        yield _tried(name, parameters, cheat, long, trials, source)

    def honest() -> Elements:
        return elements(row_of(parameters, source))

    accepted = sum(passes(parameters, honest(), Cheat(), source) for _ in range(trials))
    name = "honest, of the norm allowed"
    yield Trial(name, parameters.length, parameters.tests, trials, accepted, 1.0)


def _tried(
    name: str,
    parameters: Parameters,
    cheat: Cheat,
    row: Elements,
    trials: int,
    source: np.random.Generator,
) -> Trial:
    accepted = sum(passes(parameters, row, cheat, source) for _ in range(trials))
    bound = min(1.0, parameters.soundness)
    return Trial(name, parameters.length, parameters.tests, trials, accepted, bound)
