"""The gap statistic: how much closer together clustered points are than uniform ones would be."""

from __future__ import annotations

import math

from defenses.deferred import Tensor

_NOTHING = 1e-30
"""Stands for a dispersion of zero in logarithms."""


def gap(within: Tensor, drawn: Tensor) -> tuple[float, float]:
    """Gap(k) and its error s_k, of points in k clusters.

    W_k is the sum of squares `within` `[]` the points' clusters, and W*_k those `drawn` `[b]`
    within the clusters of b sets of uniform points: Gap(k) = mean log W*_k - log W_k, and s_k is
    the deviation of log W*_k times sqrt(1 + 1 / b). Published, k is the smallest with Gap(k) >=
    Gap(k + 1) - s_(k+1).

    Source: Tibshirani, Walther & Hastie 2001, "Estimating the number of clusters in a data set via
    the gap statistic", section 3.
    """
    logs = drawn.clamp(min=_NOTHING).log()
    error = float(logs.std(correction=0)) * math.sqrt(1 + 1 / len(drawn))
    return float(logs.mean() - within.clamp(min=_NOTHING).log()), error
