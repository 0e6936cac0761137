"""Gaussian mechanisms without sampling, exactly: the closed form of Balle & Wang 2018.

Adaptive compositions of Gaussian mechanisms are one Gaussian mechanism (Dong, Roth & Su 2022,
Corollary 3.3), whose privacy loss distribution is known. The accountant therefore needs neither a
grid nor a Fourier transform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy.optimize import brentq
from scipy.special import log_ndtr

from accounting.noises import Gaussian

_OUTWARD = 1e-9
"""Relative margin added to the solution, larger than the root finder's error."""


def composed(counts: Mapping[Gaussian, int]) -> float:
    """Returns the noise multiplier of the composition of `counts`, itself one Gaussian mechanism.

    `counts` has the number of releases of each Gaussian mechanism.
    """
    precision = sum(count / noise.noise_multiplier**2 for noise, count in counts.items())
    return float(precision**-0.5)


def log_delta(epsilon: float, noise_multiplier: float) -> float:
    """Returns log of the least delta at which a Gaussian mechanism is (epsilon, delta)-DP.

    delta(epsilon) = Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m), m = 1/z. The result is
    minus infinity where delta is 0 in float64. Source: Balle & Wang 2018, Theorem 8.
    """
    mu = 1 / noise_multiplier
    above = float(log_ndtr(mu / 2 - epsilon / mu))
    below = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    share = -math.expm1(min(below - above, 0.0))
    return above + math.log(share) if share > 0 else -math.inf


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Returns the least epsilon, rounded up, at which a Gaussian mechanism is (epsilon, delta)-DP.

    Args:
      noise_multiplier: noise standard deviation over the L2 sensitivity.
      delta: delta of the guarantee, in (0, 1).
    """
    target = math.log(delta)
    if log_delta(0.0, noise_multiplier) <= target:
        return 0.0
    mu = 1 / noise_multiplier
    most = mu * mu / 2 + mu * math.sqrt(2 * -target)  # from a tail bound on the privacy loss
    root = brentq(lambda at: log_delta(at, noise_multiplier) - target, 0.0, most, rtol=1e-12)
    return float(root) * (1 + _OUTWARD) + 1e-12
