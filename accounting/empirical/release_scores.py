"""Scores that distinguish the releases on two neighbouring inputs, fitted on one half of them.

Each release of either neighbour (`[n, ..., k]`) is mapped to one number (`[n]`), its score.
`accounting.empirical.two_sample` chooses sets of scores on the same first half and counts scores on
the second half, to which nothing here is fitted. Its test is therefore valid for any fit, which
determines only the power.

- `linear_scores`: differences of means, and of combinations of numbers with small variance.
- `quadratic_scores`: differences of variances and correlations.
- `repetition_scores`: exactly repeated values, as of noise whose seed repeats.

A release that contains a non-finite number counts as a visible abort. Two numbers are appended to
each release: an indicator of such an abort, and the count of positive minus negative infinities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
_LEAST_VARIANCE = 1e-9
"""Lower bound on the variance of a combination, which keeps its weight finite."""
_LARGEST = 1e100
"""Upper bound on the absolute value of a scaled number."""
_MOST_JOINT = 2000
"""Number of dimensions above which a discriminant treats each dimension separately, and uses only
those that differ beyond chance."""
_ROWS_A_NUMBER = 20
"""Number of releases per dimension needed to estimate a covariance."""


def linear_scores(observed0: Numbers, observed1: Numbers) -> tuple[Numbers, Numbers]:
    """Returns a score `[n]` of each release on either neighbour, by Fisher's linear discriminant.

    The discriminant is fitted on the first half of the releases `[n, ..., k]`, in the span of
    dimensions that vary. Combinations whose means differ and that have (almost) no variance get the
    largest weights.
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
    """Returns a score `[n]` of each release: the log-likelihood ratio of two fitted Gaussians.

    The Gaussians are fitted to the first half of the releases `[n, ..., k]`. If these are few for
    the number of dimensions, the dimensions are modelled as independent.
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
    """Returns a score `[n]` of each release: how much more often its values repeat on neighbour 1.

    The first half of the releases `[n, ..., k]` of either neighbour serves to count how often a
    value occurs: each single number, and all numbers of a release together. Values are counted in
    the first quarter (values of that quarter are counted in the second). `linear_scores` combines
    the log ratios of counts into one score. Continuous noise repeats no value, and scores 0.
    """
    flat0, flat1 = _flat(observed0), _flat(observed1)
    both = np.concatenate([flat0, flat1]) + 0.0  # turns -0.0 into 0.0
    quarters = np.concatenate([_parts(len(flat)) for flat in (flat0, flat1)])
    sides = np.repeat([0, 1], [len(flat0), len(flat1)])
    rows = np.ascontiguousarray(both).view(np.dtype((np.void, both.itemsize * both.shape[1])))
    evidence = [_log_ratio(values, sides, quarters) for values in (rows[:, 0], *both.T)]
    stacked = np.stack(evidence, axis=1)
    return linear_scores(stacked[: len(flat0)], stacked[len(flat0) :])


@dataclass(frozen=True)
class _Fit:
    """A Gaussian of `mean` `[m]`, with `variances` `[m]` along `axes` `[m, m]`.

    If `axes` is None, the dimensions are independent, with these variances.
    """

    mean: Numbers
    variances: Numbers
    axes: Numbers | None

    @classmethod
    def of(cls, rows: Numbers, joint: bool) -> _Fit:
        """Fits `rows` `[n, m]`, with a `joint` covariance or independent dimensions."""
        if joint:
            variances, axes = np.linalg.eigh(np.cov(rows.T))
        else:
            variances, axes = rows.var(0), None
        return cls(rows.mean(0), np.maximum(variances, _LEAST_VARIANCE), axes)

    def log_density(self, rows: Numbers) -> Numbers:
        """Returns the log density `[n]` of `rows` `[n, m]`, up to a constant."""
        apart = rows - self.mean
        turned = apart if self.axes is None else apart @ self.axes
        return np.asarray(-(turned**2 / self.variances + np.log(self.variances)).sum(1) / 2)


def _log_ratio(
    values: NDArray[np.generic], sides: NDArray[np.int64], quarters: NDArray[np.int64]
) -> Numbers:
    """Returns, for each of `values` `[n]`, the log ratio of its counts on side 1 and on side 0.

    Values are counted in the first quarter of the releases; values of that quarter are counted in
    the second. The number 1/2 is added to both counts.
    """
    _, which = np.unique(values, return_inverse=True)
    ratios = []
    for quarter in (0, 1):
        on0, on1 = (which[(sides == side) & (quarters == quarter)] for side in (0, 1))
        often0, often1 = (np.bincount(on, minlength=which.max() + 1) for on in (on0, on1))
        ratios.append(np.log((often1 + 0.5) / (often0 + 0.5))[which])
    return np.where(quarters == 0, ratios[1], ratios[0])


def _beyond_chance(apart: Numbers, variances: Numbers) -> Numbers:
    """Sets differences `apart` `[m]` within chance to zero; keeps all if none exceeds chance.

    `variances` `[m]` are those of the differences. A difference is within chance if it is at most
    sqrt(2 log m) standard deviations, the universal threshold for m Gaussians (Donoho & Johnstone
    1994).
    """
    beyond = np.abs(apart) > np.sqrt(2 * math.log(len(apart)) * variances)
    return np.where(beyond, apart, 0.0) if beyond.any() else apart


def _first_half(flat: Numbers) -> Numbers:
    return flat[: len(flat) // 2]


def _parts(count: int) -> NDArray[np.int64]:
    """Returns each release's part: 0 or 1 (quarters of the first half), or 2 (second half)."""
    half = count // 2
    return np.repeat([0, 1, 2], [half // 2, half - half // 2, count - half])


def _in_units(flat0: Numbers, flat1: Numbers) -> tuple[Numbers, Numbers]:
    """Returns both arrays `[n, m]`, each column scaled by about its maximum in the first half.

    Squares then neither overflow nor vanish. The units are powers of 2, so scaling is exact.
    """
    largest = np.concatenate([np.abs(_first_half(flat)) for flat in (flat0, flat1)]).max(0)
    _, exponents = np.frexp(largest)
    with np.errstate(over="ignore"):
        scaled = (np.ldexp(flat, -exponents) for flat in (flat0, flat1))
        in0, in1 = (np.clip(each, -_LARGEST, _LARGEST) for each in scaled)
    return in0, in1


def _flat(observed: Numbers) -> Numbers:
    """Reshapes releases `[n, ..., k]` to `[n, m + 2]`, m numbers of each release and two more.

    Numbers that are not finite become 0. The last two are 1 for a release that has such a number
    (an abort), and its number of positive minus negative infinities.
    """
    flat = observed.reshape(len(observed), -1)
    finite = np.isfinite(flat)
    sides = np.isposinf(flat).sum(1) - np.isneginf(flat).sum(1)
    return np.column_stack([np.where(finite, flat, 0.0), ~finite.all(1), sides])
