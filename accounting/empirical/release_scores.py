"""Scores that tell the releases on two neighbouring inputs apart, each learned on one half of them.

Releases `[n, ..., k]` of either neighbour become one number each `[n]`, which
`accounting.empirical.two_sample` judges: it chooses among sets of scores by the same first half,
and counts on the second, which nothing here looks at. So a test is valid whatever is learned; what
is learned decides what it sees.

- `linear_scores`: means that differ, and combinations of numbers that hardly vary.
- `quadratic_scores`: spreads and correlations that differ.
- `repetition_scores`: values that come again exactly, as those of noise whose seed repeats do.

A release of which a number is not finite is one that was aborted for all to see. That it was counts
as a number of its own, and so does how much more often it is infinite upwards than downwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
_LEAST_VARIANCE = 1e-9
"""What a combination's variance counts as at least: it then tells most, and not everything."""
_LARGEST = 1e100
"""What a number counts as at most, in its units."""
_MOST_JOINT = 2000
"""Of more numbers than these a discriminant takes each for itself, if it differs beyond chance."""
_ROWS_A_NUMBER = 20
"""How many releases the covariance of so many numbers needs, for each of them."""


def linear_scores(observed0: Numbers, observed1: Numbers) -> tuple[Numbers, Numbers]:
    """A score `[n]` of each release on either neighbour, from what is observed `[n, ..., k]`.

    The scores are along Fisher's linear discriminant of the first half of the releases, in the span
    of what varies: a combination that varies (nearly) not at all, and differs, tells most.
    """
    flat0, flat1 = _in_units(_flat(observed0), _flat(observed1))
    half0, half1 = _first_half(flat0), _first_half(flat1)
    spread = np.concatenate([half0, half1]).std(0)
    scale = np.where(spread > 0, spread, 1.0)
    apart = (half1.mean(0) - half0.mean(0)) / scale
    if len(apart) > _MOST_JOINT:
        within = np.maximum((half0.var(0) + half1.var(0)) / 2 / scale**2, _LEAST_VARIANCE)
        along = _beyond_chance(apart, within * 2 / len(half0)) / within / scale
    else:
        joint = (np.cov((half0 / scale).T) + np.cov((half1 / scale).T)) / 2
        values, vectors = np.linalg.eigh(joint)
        along = vectors @ ((vectors.T @ apart) / np.maximum(values, _LEAST_VARIANCE)) / scale
    return flat0 @ along, flat1 @ along


def quadratic_scores(observed0: Numbers, observed1: Numbers) -> tuple[Numbers, Numbers]:
    """A score `[n]` of each release: how much better a Gaussian of the one neighbour fits it.

    The Gaussians are fitted to the first half of the releases `[n, ..., k]`; where these are few
    for so many numbers, as if numbers were independent.
    """
    flat0, flat1 = _in_units(_flat(observed0), _flat(observed1))
    half0, half1 = _first_half(flat0), _first_half(flat1)
    both = np.concatenate([half0, half1])
    spread = both.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    joint = len(half0) >= _ROWS_A_NUMBER * flat0.shape[1]
    fits = [_Fit.of((half - both.mean(0)) / scale, joint) for half in (half0, half1)]
    scores = [
        fits[1].log_density(each) - fits[0].log_density(each)
        for each in ((flat - both.mean(0)) / scale for flat in (flat0, flat1))
    ]
    return scores[0], scores[1]


def repetition_scores(observed0: Numbers, observed1: Numbers) -> tuple[Numbers, Numbers]:
    """A score `[n]` of each release: how much more often its very values came of the one neighbour.

    For each of its numbers, and for all together, it is counted how often a quarter of the releases
    `[n, ..., k]` of either neighbour had the same: the first quarter, and for that the second, both
    of the first half. The logarithms of the counts' ratios are the evidence, of which
    `linear_scores` makes one score. Continuous noise repeats nothing, and scores 0.
    """
    flat0, flat1 = _flat(observed0), _flat(observed1)
    both = np.concatenate([flat0, flat1]) + 0.0  # which makes of -0.0 the same zero
    quarters = np.concatenate([_parts(len(flat)) for flat in (flat0, flat1)])
    sides = np.repeat([0, 1], [len(flat0), len(flat1)])
    rows = np.ascontiguousarray(both).view(np.dtype((np.void, both.itemsize * both.shape[1])))
    evidence = [_log_ratio(values, sides, quarters) for values in (rows[:, 0], *both.T)]
    stacked = np.stack(evidence, axis=1)
    return linear_scores(stacked[: len(flat0)], stacked[len(flat0) :])


@dataclass(frozen=True)
class _Fit:
    """A Gaussian of `mean` `[m]`, with `variances` `[m]` along `axes` `[m, m]`, or each number."""

    mean: Numbers
    variances: Numbers
    axes: Numbers | None

    @classmethod
    def of(cls, rows: Numbers, joint: bool) -> _Fit:
        """Fitted to `rows` `[n, m]`: their numbers' `joint` spread, or as if independent."""
        if joint:
            variances, axes = np.linalg.eigh(np.cov(rows.T))
        else:
            variances, axes = rows.var(0), None
        return cls(rows.mean(0), np.maximum(variances, _LEAST_VARIANCE), axes)

    def log_density(self, rows: Numbers) -> Numbers:
        """The log density `[n]` of `rows` `[n, m]`, up to a constant."""
        apart = rows - self.mean
        turned = apart if self.axes is None else apart @ self.axes
        return np.asarray(-(turned**2 / self.variances + np.log(self.variances)).sum(1) / 2)


def _log_ratio(
    values: NDArray[np.generic], sides: NDArray[np.int64], quarters: NDArray[np.int64]
) -> Numbers:
    """For each of `values` `[n]`: log of how often it came on side 1, over on side 0.

    In the first quarter; for values of that, in the second. A half is added to both counts.
    """
    _, which = np.unique(values, return_inverse=True)
    ratios = []
    for quarter in (0, 1):
        on0, on1 = (which[(sides == side) & (quarters == quarter)] for side in (0, 1))
        often0, often1 = (np.bincount(on, minlength=which.max() + 1) for on in (on0, on1))
        ratios.append(np.log((often1 + 0.5) / (often0 + 0.5))[which])
    return np.where(quarters == 0, ratios[1], ratios[0])


def _beyond_chance(apart: Numbers, variances: Numbers) -> Numbers:
    """Of differences `apart` `[m]` those that are larger than any of m would be by chance, or all.

    Their `variances` are `[m]`. Gaussians in number m stay below root 2 log m (Donoho & Johnstone
    1994, the universal threshold).
    """
    beyond = np.abs(apart) > np.sqrt(2 * math.log(len(apart)) * variances)
    return np.where(beyond, apart, 0.0) if beyond.any() else apart


def _first_half(flat: Numbers) -> Numbers:
    return flat[: len(flat) // 2]


def _parts(count: int) -> NDArray[np.int64]:
    """The part of each of so many releases: 0 or 1, quarters of the first half; 2, the second."""
    half = count // 2
    return np.repeat([0, 1, 2], [half // 2, half - half // 2, count - half])


def _in_units(flat0: Numbers, flat1: Numbers) -> tuple[Numbers, Numbers]:
    """Both `[n, m]`, each number over about the largest that it was in the first half.

    So no square of one overflows, or vanishes. The units are powers of 2, which round nothing.
    """
    largest = np.concatenate([np.abs(_first_half(flat)) for flat in (flat0, flat1)]).max(0)
    _, exponents = np.frexp(largest)
    with np.errstate(over="ignore"):
        scaled = (np.ldexp(flat, -exponents) for flat in (flat0, flat1))
        in0, in1 = (np.clip(each, -_LARGEST, _LARGEST) for each in scaled)
    return in0, in1


def _flat(observed: Numbers) -> Numbers:
    """`[n, ..., k]` as `[n, m + 2]`: an aborted release shows that it was, and to which side."""
    flat = observed.reshape(len(observed), -1)
    finite = np.isfinite(flat)
    sides = np.isposinf(flat).sum(1) - np.isneginf(flat).sum(1)
    return np.column_stack([np.where(finite, flat, 0.0), ~finite.all(1), sides])
