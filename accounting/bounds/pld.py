"""Privacy loss distributions by dp-accounting, of sampled Gaussians and their compositions."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from accounting.bounds import random_allocation
from accounting.bounds.closed import composed, gaussian_epsilon
from accounting.bounds.library import privacy_loss_distribution as library
from accounting.bounds.library import privacy_loss_mechanism as mechanisms
from accounting.bounds.library import stats
from accounting.bounds.loss_tails import LossTails
from accounting.bounds.rdp import reach
from accounting.bounds.several_sites import largest_loss, losses
from accounting.errors import Unaccountable
from accounting.noises import Gaussian
from accounting.over_rounds import AllocatedEpoch
from accounting.releases import PoissonSampled, SeveralSites, TruncatedPoisson

Known = Gaussian | PoissonSampled | SeveralSites | TruncatedPoisson | AllocatedEpoch
Counts = Mapping[Known, int]

_FFT_ERROR = 1e-15
"""Error of delta per composed event: PLD convolves by FFT, whose rounding was measured at up to
3e-17 per event against the closed form. The bound is evaluated at a delta reduced by this much."""

_FINEST_GRID, _COARSEST_GRID, _LARGEST_GRID = 1e-6, 1e-3, 300_000


def pld_epsilon(counts: Counts, delta: float) -> float | None:
    """Returns epsilon of `counts` at `delta`; None if rounding errors may exceed delta / 100."""
    plain = {noise: count for noise, count in counts.items() if isinstance(noise, Gaussian)}
    sampled = Counter({release: count for release, count in counts.items() if release not in plain})
    if not sampled:
        return gaussian_epsilon(composed(plain), delta)
    if plain:
        sampled[Gaussian(composed(plain))] = 1
    error = _FFT_ERROR * sum(counts.values())
    return _composed(tuple(sampled.items()), delta - error) if delta >= 100 * error else None


@functools.lru_cache(maxsize=1024)
def _composed(counts: tuple[tuple[Any, int], ...], delta: float) -> float:
    with np.errstate(over="ignore", divide="ignore"):  # ratios to masses that are 0 in float64
        return _tails(counts).epsilon(delta)


@functools.lru_cache(maxsize=4)
def _tails(counts: tuple[tuple[Any, int], ...]) -> LossTails:
    return LossTails(_distribution(counts))


@functools.lru_cache(maxsize=4)
def _distribution(counts: tuple[tuple[Any, int], ...]) -> Any:
    """Returns the `PrivacyLossDistribution` of all events; cached, since several deltas use it."""
    grid = _grid(dict(counts))
    total = None
    for release, count in counts:
        event = _losses(release, grid)
        event = event.self_compose(count) if count > 1 else event
        total = event if total is None else total.compose(event)
    return total


@functools.lru_cache(maxsize=8)
def _losses(release: Known, grid: float) -> Any:
    if isinstance(release, SeveralSites):
        return losses(release, grid)
    if isinstance(release, TruncatedPoisson):
        return _truncated(release, grid)
    if isinstance(release, AllocatedEpoch):
        choices, noise = release.choices, release.of.noise_multiplier
        return random_allocation.losses(choices, noise, grid)
    q, z = _rate_and_noise(release)
    return _gaussian(z, q, grid)


def _truncated(release: TruncatedPoisson, grid: float) -> Any:
    """Returns losses of a mixture: Poisson sampling at z, or at z / 2 if others fill the cohort.

    Proof, for a population of n + 1 <= `clients` and its neighbour without client k. Each client
    has a random priority, and if more than `cap` clients are sampled, those of the highest
    priorities take part. Reveal to the adversary which of the other n were sampled, and their
    priorities (by joint convexity this can only increase the divergence); let their sum after
    truncation be the origin. Client k then takes part with some probability p <= q. With fewer than
    `cap` others the pair is (1 - p) N(0) + p N(x) against N(0), |x| <= 1 in clipping norms;
    otherwise k displaces another client, and |x| <= 2. Mixing both sides with N(0) lowers q to p,
    and a shorter x is more noise relative to x, a post-processing. So Poisson sampling at q, with z
    in the first case and z / 2 in the second, dominates the pair. The probability that `cap` others
    are sampled, P[Bin(n, q) >= cap], is the same on both sides, and largest at n = `clients` - 1.
    Since the pair at z / 2 dominates the pair at z, the mixture with this largest probability
    dominates those of all smaller n. (The same idea as Ganesh 2025, arXiv 2508.15089, which has a
    slightly tighter p for one n.)
    """
    q, z = release.rate, release.of.noise_multiplier
    cut = float(stats.binom.sf(release.cap - 1, release.clients - 1, q))
    uncut = _gaussian(z, q, grid)
    if cut == 0.0:
        return uncut
    return _gaussian(z / 2, q, grid).compute_mixture(uncut, min(cut * (1 + 1e-9), 1.0))


@dataclass(frozen=True)
class _Normal:
    """`scipy.stats.norm(scale=std)`, equal to the last bit, without importing `scipy.stats`."""

    std: float

    def cdf(self, x: Any) -> Any:
        return ndtr(x / self.std)

    def logcdf(self, x: Any) -> Any:
        return log_ndtr(x / self.std)

    def ppf(self, probability: float) -> Any:
        return ndtri(probability) * self.std


class SampledGaussian(mechanisms.GaussianPrivacyLoss):  # type: ignore[misc]
    """dp-accounting's privacy loss of subsampled Gaussian noise, vectorised over epsilon."""

    def __init__(self, std: float, rate: float, adjacency: Any) -> None:
        mechanisms.AdditiveNoisePrivacyLoss.__init__(self, 1, False, rate, adjacency)
        self._standard_deviation, self._gaussian_random_variable = std, _Normal(std)
        self._pessimistic_estimate, self._log_mass_truncation_bound = True, -50

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """Returns hockey-stick divergences at `epsilon`, as dp-accounting does up to rounding."""
        if np.ndim(epsilon) == 0 or self.sampling_prob == 1.0:
            return super().get_delta_for_epsilon(epsilon)
        epsilons, adds = np.asarray(epsilon), self.adjacency_type == mechanisms.AdjacencyType.ADD
        edge = math.log1p(-self.sampling_prob)
        inside = epsilons < -edge if adds else epsilons > edge
        deltas = np.zeros(len(epsilons))
        if not adds:
            deltas[~inside] = -np.expm1(epsilons[~inside])
        at = self._inverses(epsilons[inside])
        lower = np.exp(epsilons[inside] + self.mu_lower_log_cdf(at))
        deltas[inside] = self.mu_upper_cdf(at) - lower
        return np.clip(deltas, 0, 1)

    def _inverses(self, epsilons: np.ndarray) -> np.ndarray:
        """Returns `inverse_privacy_loss` of each of `epsilons`, which the loss must attain."""
        adds, rate = self.adjacency_type == mechanisms.AdjacencyType.ADD, self.sampling_prob
        signed = -epsilons if adds else epsilons
        near = np.isclose(signed, math.log(1 - rate), rtol=1e-8, atol=0.0) | (signed == 0.0)
        first, second = signed + np.log(1 / rate), np.log(1 / rate - 1)
        near |= first <= second
        exponents = np.where(near, -1.0, second - first)
        losses = first + np.log1p(-np.exp(exponents))
        losses = -losses if adds else losses
        squared, moved = self._standard_deviation**2, self.sensitivity
        at: np.ndarray = -0.5 * moved - losses * squared / moved
        at = moved + at if adds else at
        at[near] = [self.inverse_privacy_loss(each) for each in epsilons[near]]
        return at


def _gaussian(z: float, rate: float, grid: float) -> Any:
    def masses(adjacency: Any) -> Any:
        return library._create_pld_pmf_from_monotone_privacy_loss(
            SampledGaussian(z, rate, adjacency),
            pessimistic_estimate=True,
            value_discretization_interval=grid,
            use_connect_dots=True,
        )

    return library._pld_for_subsampled_mechanism(masses, rate)


def _grid(counts: Counts) -> float:
    """Returns the grid step of privacy losses: any is valid, a finer one is tighter and slower.

    The step is a tenth of the smallest standard deviation of one event's loss, within fixed limits.
    It is coarser if the losses of one event, or of all events together (estimated by RDP), would
    need more than 300,000 points. If the number of points determines the step, it is a power of
    2^(1/4), so a search over rounds reuses the grid.
    """
    spread = min(_loss_std(release) for release in counts)
    tops = [_loss_reach(release) for release in counts]
    fine = min(max(spread / 10, _FINEST_GRID), _COARSEST_GRID)
    coarse = max([reach(counts), *tops]) / _LARGEST_GRID
    return max(fine, 2 ** (math.ceil(4 * math.log2(coarse)) / 4))


def _loss_std(release: Known) -> float:
    """Estimates the likelihood ratio's standard deviation, q sqrt(exp(1/z^2) - 1), capped at 1."""
    if isinstance(release, AllocatedEpoch):
        return random_allocation.loss_std(release.choices, release.of.noise_multiplier)
    q, z = _rate_and_noise(release)
    return min(1.0, q * math.sqrt(math.expm1(min(1 / z**2, 50.0))))


def _loss_reach(release: Known) -> float:
    """Returns a large privacy loss of one event: of Gaussian noise at 10 standard deviations."""
    if isinstance(release, SeveralSites):
        return largest_loss(release)
    if isinstance(release, AllocatedEpoch):
        return random_allocation.largest_loss(release.choices, release.of.noise_multiplier)
    z = _rate_and_noise(release)[1]
    return 10 / z + 0.5 / z**2


def _rate_and_noise(release: Known) -> tuple[float, float]:
    match release:
        case Gaussian(noise_multiplier=z):
            return 1.0, z
        case PoissonSampled(rate=q, of=Gaussian(noise_multiplier=z)):
            return q, z
        case SeveralSites(rate=q, sites=sites, of=Gaussian(noise_multiplier=z)):
            return min(sites * q, 1.0), z
        case TruncatedPoisson(rate=q, of=Gaussian(noise_multiplier=z)):
            return q, z / 2
    raise Unaccountable(
        f"accountant is 'pld', but no privacy loss distribution is known for {release}; use 'rdp' "
        "or 'tightest'"
    )
