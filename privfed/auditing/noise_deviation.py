"""What thousands of releases say of the noise: its deviation, held against what was charged."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr

from accounting.bounds.toeplitz_sensitivity import column_norm
from accounting.events import CHANGE, Event
from accounting.over_rounds import BufferedToeplitz
from accounting.releases import Repeated
from privfed.auditing.scenarios import AIMED, LENGTH
from privfed.round.algorithm import Algorithm

Numbers = NDArray[np.float64]


def _column_norm(event: Event, algorithm: Algorithm) -> float:
    """How far one row of a client moves C x, where noise is correlated over rounds by C; else 1."""
    if isinstance(event.release, BufferedToeplitz):
        return column_norm(event.release.decays, event.release.outputs)
    return float(np.linalg.norm(algorithm.mechanism.coefficients()))


def measured_noise(released: Numbers, algorithm: Algorithm, event: Event) -> tuple[float, float]:
    """The noise of releases `[n, k]` over what was charged, and a p-value that it is no less.

    The clients send nothing. In clips, one exchange's noise deviates by at least z times what one
    client can change, times the root of the exchanges, as together they are charged as one; of a
    client's sites charged apart, the noises add up. Where noise is correlated over rounds, the
    releases are those of the first one. p is the probability of squares so small, of Gaussians:
    chi-squared, with a degree less for the mean of every number. Raises `ValueError` for an event
    without noise.
    """
    noise = event.noise
    if noise is None:
        raise ValueError("an event without noise claims nothing")
    parts = event.release.count if isinstance(event.release, Repeated) else 1
    adding_up = math.sqrt(algorithm.exchanges * parts)
    charged = noise.noise_multiplier * CHANGE[event.relation] * adding_up
    charged *= _column_norm(event, algorithm)
    idle = released[~np.isnan(released).any(1), AIMED:LENGTH]
    if len(idle) < 2:
        return math.nan, 1.0
    squares = float((((idle - idle.mean(0)) / charged) ** 2).sum())
    freedom = (len(idle) - 1) * idle.shape[1]
    return math.sqrt(squares / freedom), float(chdtr(freedom, squares))
