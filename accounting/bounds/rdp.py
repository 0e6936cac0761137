"""Rényi differential privacy: curves over orders, added up, and converted by dp-accounting."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from accounting.bounds.allocation_divergence import allocation_divergences
from accounting.bounds.integer_noise import (
    discrete_gaussian_divergence,
    skellam_divergence,
)
from accounting.bounds.library import dp_accounting
from accounting.bounds.library import rdp as library
from accounting.bounds.poisson_sampling import poisson_sampled
from accounting.bounds.sampled_gaussian import sampled_divergences
from accounting.bounds.several_sites import likely_divergences, split
from accounting.bounds.without_replacement import wor_divergence
from accounting.choosing.private_selection import selected_divergences
from accounting.choosing.repeat_and_select import RepeatAndSelect
from accounting.noises import DiscreteGaussians, Gaussian, IntegerNoise, Skellam
from accounting.over_rounds import AllocatedEpoch
from accounting.releases import PoissonSampled, SeveralSites, TruncatedPoisson, WithoutReplacement

Known = (
    AllocatedEpoch
    | Gaussian
    | IntegerNoise
    | PoissonSampled
    | SeveralSites
    | WithoutReplacement
    | RepeatAndSelect
)

_ROUNDING = 1e-12
"""Margin added to the divergence at every order, per event. Compared with 50-digit arithmetic, the
library's sums in double precision were off by up to 1e-14 (alpha = 256)."""

_FEW = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)


def rdp_epsilon(counts: Mapping[Known, int], delta: float) -> float:
    """Returns the least epsilon of `counts` at `delta` over all orders of Rényi divergence."""
    orders = _curve(next(iter(counts)))[0]
    total = sum(count * _curve(release)[1] for release, count in counts.items())
    return float(library.compute_epsilon(orders, total, delta)[0])


def reach(counts: Mapping[Any, int]) -> float:
    """Estimates the largest relevant privacy loss of `counts`; no proof depends on the estimate."""
    total = sum(count * _likely_curve(release) for release, count in counts.items())
    return float(library.compute_epsilon(_FEW, total, 1e-15)[0])


def _likely_curve(release: Any) -> np.ndarray:
    """Estimates the Rényi divergences of `release` at the twelve orders `_FEW`, without a proof."""
    match release:
        case TruncatedPoisson(rate=rate, of=noise):
            return _curve(PoissonSampled(rate, noise), _FEW)[1]
        case SeveralSites():
            return likely_divergences(release, _FEW) + _ROUNDING
    return _curve(release, _FEW)[1]


@functools.lru_cache(maxsize=256)
def _curve(release: Known, few: tuple[float, ...] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns orders (`few`, or dp-accounting's) and the Rényi divergences at them, rounded up."""
    accountant = library.RdpAccountant(few)
    match release:
        case RepeatAndSelect(of=releases, repetitions=repetitions):
            once = np.sum([count * _curve(part, few)[1] for part, count in releases], axis=0)
            chosen = selected_divergences(accountant.orders, once, repetitions)
            return accountant.orders, chosen + _ROUNDING
        case AllocatedEpoch(choices=choices, of=Gaussian(noise_multiplier=z)):
            bounds = allocation_divergences(choices, z, accountant.orders)
            return accountant.orders, bounds + _ROUNDING
        case SeveralSites(sites=sites):
            orders, parts = _curve(split(release), few)
            return orders, sites * parts
        case WithoutReplacement(cohort=m, clients=n, of=Gaussian(noise_multiplier=z)):
            curve = [wor_divergence(m / n, z, order) for order in accountant.orders]
            return accountant.orders, np.array(curve) + _ROUNDING
        case Skellam() | DiscreteGaussians() | PoissonSampled(of=Skellam() | DiscreteGaussians()):
            curve = [_between(release, order) for order in accountant.orders]
            return accountant.orders, np.array(curve) + _ROUNDING
        case PoissonSampled(rate=q, of=Gaussian(noise_multiplier=z)) if 0.0 < q < 1.0 and z:
            # Divergences are quasi-convex, so a sample is no worse than full participation. The
            # sum is infinite at fractional orders where its series does not converge.
            most = accountant.orders / (2 * z * z)
            sampled = np.clip(sampled_divergences(q, z, accountant.orders), 0.0, most)
            return accountant.orders, sampled + _ROUNDING
        case PoissonSampled(rate=q, of=Gaussian(noise_multiplier=z)):
            gaussian = dp_accounting.GaussianDpEvent(z)
            accountant.compose(dp_accounting.PoissonSampledDpEvent(q, gaussian))
        case Gaussian(noise_multiplier=z):
            accountant.compose(dp_accounting.GaussianDpEvent(z))
    return accountant.orders, np.clip(accountant.rdp, 0.0, math.inf) + _ROUNDING


def _between(release: Any, order: float) -> float:
    """Interpolates the divergence of integer noise, whose Skellam bounds need integer orders.

    (order - 1) D_order is convex in the order (van Erven & Harremoes 2014, Corollary 2), and 0 at
    order 1, so linear interpolation between integer orders is an upper bound.
    """
    if isinstance(release, DiscreteGaussians):
        return integer_divergence(release, order)
    low = math.floor(order)
    below = (low - 1) * integer_divergence(release, low) if low > 1 else 0.0
    if low == order:
        return below / (order - 1)
    above = low * integer_divergence(release, low + 1)
    return (below + (order - low) * (above - below)) / (order - 1)


@functools.lru_cache(maxsize=4096)
def integer_divergence(release: Any, order: float) -> float:
    """Returns a bound on the Rényi divergence of integer noise, Poisson-sampled or not.

    The order must be an integer of at least 2, except for discrete Gaussians without sampling (any
    order above 1). Raises `ValueError` for other fractional orders, `TypeError` for other noise.
    """
    if order != int(order) and not isinstance(release, DiscreteGaussians):
        raise ValueError(f"order {order} is fractional, but {release!r} needs an integer order")
    match release:
        case PoissonSampled(rate=q, of=noise):
            return poisson_sampled(functools.partial(integer_divergence, noise), q, int(order))
        case Skellam(variance=variance, l2=l2, l1=l1, exchanges=exchanges):
            return exchanges * skellam_divergence(int(order), variance, l2, l1)
        case DiscreteGaussians(std=s, clients=n, l2=l2, l1=l1, length=d, exchanges=exchanges):
            return exchanges * discrete_gaussian_divergence(order, s, n, l2, l1, d)
    raise TypeError(f"{release!r} has no noise on integers")
