"""What thousands of releases on two neighbouring populations say: scores, noise, and claims."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr

from accounting.bounds.toeplitz_sensitivity import column_norm
from accounting.empirical.two_sample import Claim
from accounting.errors import AccountingError
from accounting.events import CHANGE, Event
from accounting.guarantee import guarantee
from accounting.over_rounds import BufferedToeplitz
from accounting.releases import PoissonSampled, Repeated, SeveralSites
from privfed.auditing.scenarios import AIMED, LENGTH
from privfed.round.algorithm import Algorithm

Numbers = NDArray[np.float64]
_DELTAS = (1e-6, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
_LEAST_VARIANCE = 1e-9
"""What a combination's variance counts as at least: it then tells most, and not everything."""


def claimed_points(event: Event, rounds: int, delta: float) -> Iterator[Claim]:
    """Points (epsilon, delta) of the privacy profile claimed for so many rounds, one at `delta`.

    Who is never drawn changes nothing: so much less than accountants of integer noise know is
    claimed of every draw by coins.
    """
    if isinstance(event.release, PoissonSampled | SeveralSites | Repeated):
        rate, coins = _coins(event.release)
        yield 0.0, min(1.0, 1.0 - (1.0 - rate) ** (coins * rounds) + rounds * event.slack)
    for at in sorted({*_DELTAS, delta}):
        try:
            epsilon = guarantee({event: rounds}, at).epsilon
        except AccountingError:
            continue
        if epsilon < math.inf:
            yield epsilon, at


def _coins(release: PoissonSampled | SeveralSites | Repeated) -> tuple[float, int]:
    """The bias of a client's coins, and how many of them are thrown for one release."""
    match release:
        case PoissonSampled(rate=rate):
            return rate, 1
        case SeveralSites(rate=rate, sites=sites):
            return rate, sites
        case Repeated(count=count, of=each):
            return each.rate, count


def scores(observed0: Numbers, observed1: Numbers) -> tuple[Numbers, Numbers]:
    """A score of each release on either neighbour, from what is observed `[n, rounds, k]`.

    The scores are along Fisher's linear discriminant of the first half of the releases, in the span
    of what varies: a combination that varies (nearly) not at all, and differs, tells most.
    """
    flat0, flat1 = _flat(observed0), _flat(observed1)
    half0, half1 = flat0[: len(flat0) // 2], flat1[: len(flat1) // 2]
    spread = np.concatenate([half0, half1]).std(0)
    scale = np.where(spread > 0, spread, 1.0)
    within = (np.cov((half0 / scale).T) + np.cov((half1 / scale).T)) / 2
    values, vectors = np.linalg.eigh(within)
    apart = vectors.T @ ((half1.mean(0) - half0.mean(0)) / scale)
    along = vectors @ (apart / np.maximum(values, _LEAST_VARIANCE)) / scale
    return flat0 @ along, flat1 @ along


def _flat(observed: Numbers) -> Numbers:
    """`[n, rounds, k]` as `[n, rounds * k + 1]`: an aborted round shows that it was, alone."""
    aborted = np.isnan(observed).any(axis=(1, 2))
    flat = np.nan_to_num(observed).reshape(len(observed), -1)
    return np.column_stack([flat, aborted])


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
