"""Rényi divergences of distributed integer noise: Skellam, and sums of discrete Gaussians.

All quantities are in units of the integer grid. One client changes the sum of encoded vectors by at
most `l2` in L2 and `l1` in L1 norm.

*Skellam* of variance mu per coordinate (Agarwal, Kairouz & Liu 2021, Theorem 3.5), integer alpha:

    alpha l2^2 / (2 mu) + min{ ((2 alpha - 1) l2^2 + 6 l1) / (4 mu^2), 3 l1 / (2 mu) }

*n discrete Gaussians* of standard deviation s each, in d dimensions (Kairouz, Liu & Steinke 2021,
Theorem 1), with tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 s^2 k / (k + 1)) and v = n s^2:

    min{ alpha l2^2 / (2 v) + tau d,
         (alpha / 2) (l2^2 / v + 2 l1 tau / sqrt(v) + tau^2 d),
         (alpha / 2) (l2 / sqrt(v) + tau sqrt(d))^2 }

Both distributions are symmetric about 0, so the divergences of the two directions are equal.
Poisson sampling of either: `accounting.bounds.poisson_sampling`.

Bounds at integer orders extend to orders between them by convexity (`accounting.bounds.rdp`).
"""

from __future__ import annotations

import math

import numpy as np


def skellam_divergence(alpha: int, variance: float, l2: float, l1: float) -> float:
    """Returns a bound on the Rényi divergence of Skellam noise, at an integer order alpha >= 2.

    `variance` is in squared grid steps, and the sensitivities `l2` and `l1` are in grid steps.
    """
    second = ((2 * alpha - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    return alpha * l2**2 / (2 * variance) + min(second, 3 * l1 / (2 * variance))


def discrete_gaussian_divergence(
    alpha: float, std: float, clients: int, l2: float, l1: float, length: int
) -> float:
    """Returns a bound on the Rényi divergence of a sum of `clients` discrete Gaussians.

    Args:
      alpha: order, above 1.
      std: standard deviation of each client's noise, in grid steps.
      clients: number of discrete Gaussians.
      l2: L2 sensitivity, in grid steps.
      l1: L1 sensitivity, in grid steps.
      length: number of coordinates.
    """
    k = np.arange(1, clients)
    tau = 10 * float(np.exp(-2 * math.pi**2 * std**2 * k / (k + 1)).sum())
    variance = clients * std**2
    return min(
        alpha * l2**2 / (2 * variance) + tau * length,
        alpha / 2 * (l2**2 / variance + 2 * l1 * tau / math.sqrt(variance) + tau**2 * length),
        alpha / 2 * (l2 / math.sqrt(variance) + tau * math.sqrt(length)) ** 2,
    )
