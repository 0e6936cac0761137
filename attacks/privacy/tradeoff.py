"""Upper bounds that (ε, δ)-differential privacy implies for tests between neighbouring datasets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def tpr_bound(fpr: Reals, epsilon: float, delta: float) -> Reals:
    """Returns an upper bound on the TPR of any test at the FPRs `fpr`, both `[k]`.

    The adjacency relation has to be symmetric. The bound is min(e^ε FPR + δ, 1 - e^-ε (1 - δ -
    FPR)), at most 1. Source: Wasserman & Zhou 2010, theorem 2.4; Kairouz, Oh & Viswanath 2015,
    theorem 2.1. For infinite ε the bound is 1.

    >>> tpr_bound(np.array([0.0, 0.25, 0.5]), math.log(3), 0.0).round(4)
    array([0.    , 0.75  , 0.8333])
    """
    if epsilon == math.inf:
        return np.ones_like(fpr)
    # e^min(ε, 700): beyond it the bound is 1 for every positive FPR that a float can hold.
    few = math.exp(min(epsilon, 700.0)) * fpr + delta
    many = 1 - math.exp(-epsilon) * (1 - delta - fpr)
    return np.clip(np.minimum(few, many), 0.0, 1.0)


def advantage_bound(epsilon: float, delta: float) -> float:
    """Returns an upper bound on TPR - FPR of any test: (e^ε - 1 + 2δ) / (e^ε + 1).

    It is reached where the two lines of `tpr_bound` meet.

    >>> round(advantage_bound(math.log(3), 0.0), 9)
    0.5
    """
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (math.exp(min(epsilon, 700.0)) + 1))


def at_distance_two(epsilon: float, delta: float) -> tuple[float, float]:
    """Returns the guarantee (2ε, (1 + e^ε) δ) for datasets at distance two, by group privacy.

    Source: Dwork & Roth 2014, theorem 2.2 and its proof.

    >>> at_distance_two(0.0, 1e-3)
    (0.0, 0.002)
    """
    if epsilon == math.inf:
        return epsilon, delta
    return 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)
