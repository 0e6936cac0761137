"""The noise on a model at one guarantee, relative to independent noise with public participation.

A client takes part once in `apart` rounds. For each mechanism, the table gives the root mean square
noise on the sums of the first 1 to `rounds` releases. All are at one epsilon and delta; 1 is
independent noise with cyclic sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from accounting.calibration import noise_multiplier
from experiments.less_noise.draws import Draw, allocated, cyclic, poisson
from privfed.privacy.noise.factorization import (
    optimal_bands,
    optimal_buffers,
    prefix_noise,
    square_root,
)

ROOT, OPTIMISED, BUFFERED = "square root bands", "optimised bands", "BLT"
ALLOCATION, IN_BANDS, POISSON = "allocation", "allocation, bands", "Poisson"
ROUNDS, APART, EPSILONS, DELTA = (100, 500, 2_000), (10, 50, 100), (1.0, 4.0), 1e-5
_OF_RUNS = (0.5, 1.0, 2.0, 4.0, 8.0)
_BUFFERS = 2


@dataclass(frozen=True)
class NoiseOnModel:
    """The `relative` noise of a `method` with `bands` bands; 0 if buffers correlate all rounds."""

    rounds: int
    apart: int
    epsilon: float
    delta: float
    method: str
    relation: str
    bands: int
    relative: float


@dataclass(frozen=True)
class Setting:
    """A run of `rounds`, with each client once in `apart` of them, at `epsilon` and `delta`."""

    rounds: int
    apart: int
    epsilon: float
    delta: float = DELTA

    def least(self, draw: Draw) -> float:
        """Returns the least noise multiplier for which all rounds satisfy epsilon."""
        return noise_multiplier(draw, self.rounds, self.epsilon, self.delta)

    def row(self, method: str, draw: Draw, bands: int, relative: float) -> NoiseOnModel:
        """Returns a line of the table."""
        where = self.rounds, self.apart, self.epsilon, self.delta
        return NoiseOnModel(*where, method, draw(1.0).relation, bands, relative)


def noise_table(settings: Iterable[Setting]) -> Iterator[NoiseOnModel]:
    """Yields every method in each of `settings`."""
    for setting in settings:
        yield from unamplified(setting)
        yield from amplified(setting)


def long_and_short() -> Iterator[Setting]:
    """Yields settings from a hundred to 2,000 rounds."""
    for rounds in ROUNDS:
        for apart in APART:
            for epsilon in EPSILONS:
                yield Setting(rounds, apart, epsilon)


def of_runs(apart: int) -> Iterator[Setting]:
    """Yields the settings of a grid's runs."""
    for epsilon in _OF_RUNS:
        yield Setting(200, apart, epsilon, 1e-4)


def unamplified(setting: Setting) -> Iterator[NoiseOnModel]:
    """Yields correlated noise with cyclic sampling; its relative noise does not depend on
    epsilon.
    """
    rounds, apart, draw = setting.rounds, setting.apart, cyclic(setting.apart)
    bands = min(apart, rounds)
    solved = ((ROOT, square_root(bands)), (OPTIMISED, optimal_bands(bands, rounds)))
    for method, coefficients in solved:
        yield setting.row(method, draw, bands, prefix_noise(np.asarray(coefficients), rounds))
    buffers = optimal_buffers(_BUFFERS, rounds, apart)
    yield setting.row(BUFFERED, draw, 0, buffers.noise(rounds, apart))


def amplified(setting: Setting) -> Iterator[NoiseOnModel]:
    """Yields secret sampling with independent noise, and with the number of bands of least
    noise.
    """
    apart, independent = setting.apart, setting.least(cyclic(setting.apart))
    for method, draw in ((ALLOCATION, allocated(apart)), (POISSON, poisson(apart))):
        yield setting.row(method, draw, 1, setting.least(draw) / independent)
    noise = {bands: in_bands(setting, bands) / independent for bands in several(apart)}
    best = min(noise, key=noise.__getitem__)
    yield setting.row(IN_BANDS, allocated(apart, best), best, noise[best])


def in_bands(setting: Setting, bands: int) -> float:
    """Returns the noise on the model for allocation in `bands` groups, in clipping norms."""
    column = np.asarray(optimal_bands(bands, setting.rounds))
    noise = setting.least(allocated(setting.apart, bands))
    return noise * prefix_noise(column, setting.rounds)


def several(slots: int) -> tuple[int, ...]:
    """Returns the numbers of groups, above one, that divide `slots`."""
    return tuple(groups for groups in range(2, slots + 1) if slots % groups == 0)
