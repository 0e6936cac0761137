"""The gap statistic: compares the dispersion of clustered points with that of uniform points."""

from __future__ import annotations

import math

from defenses.deferred import Tensor

_NOTHING = 1e-30
"""Smaller dispersions are replaced by this value before the logarithm is taken."""


def gap(within: Tensor, drawn: Tensor) -> tuple[float, float]:
    """Returns the gap statistic Gap(k) of points in k clusters, and its error s_k.

    W_k is the sum of squares within the points' clusters, and W*_k the sum within the clusters of
    each of b uniform reference sets. Gap(k) = mean log W*_k - log W_k, and s_k is the standard
    deviation of log W*_k times sqrt(1 + 1 / b). In the published method, the number of clusters is
    the smallest k with Gap(k) >= Gap(k + 1) - s_(k+1).

    Args:
      within: sum of squares within the clusters W_k, shape [].
      drawn: sums of squares W*_k of the reference sets, shape [b].

    Source: Tibshirani, Walther & Hastie 2001, "Estimating the number of clusters in a data set via
    the gap statistic", section 3.
    """
    logs = drawn.clamp(min=_NOTHING).log()
    error = float(logs.std(correction=0)) * math.sqrt(1 + 1 / len(drawn))
    return float(logs.mean() - within.clamp(min=_NOTHING).log()), error
