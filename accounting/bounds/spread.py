"""Distributions of positive numbers on a geometric grid, spread so that means are preserved.

A *spread* of a random number X is an X' with E[X' | X] = X. By Jensen's inequality E f(X') is at
least E f(X) for every convex f. Each operation here replaces a distribution by one of its spreads:

- a mass between two points of the grid is divided between both, in the proportion that keeps its
  mean;
- a sum of independent spreads is a spread of the sum, and its points are split in the same way;
- mass below the lowest point is divided between that point and 0;
- mass above the highest point s is divided between s and some M, in the limit M -> inf: the excess
  of its mean over s is at M, with a vanishing mass. The distribution keeps that mean as `far`. For
  an f with f(x) <= x, f(M) times that mass tends to `far` at most, and for a bounded f to zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Numbers = NDArray[np.float64]

_TAIL = 1e-20
"""Amount cut off by truncation: probability mass at the bottom, a fraction of the mean at the top.
"""


@dataclass(frozen=True)
class Spread:
    """A distribution of masses `[n]` at exp(step * (first + i)), with a mass at `zero`.

    `far` is the part of the mean that was cut off at the top; it belongs to points at infinity.
    """

    step: float
    first: int
    masses: Numbers
    zero: float
    far: float

    @property
    def logarithms(self) -> Numbers:
        """Logarithms `[n]` of the points."""
        return np.asarray(self.step * (self.first + np.arange(len(self.masses))), dtype=np.float64)


def lognormal(location: float, std: float, step: float) -> Spread:
    """Returns a spread of exp(N(location, std^2)); its mean is exp(location + std^2 / 2).

    The mean of a cell is the total mean times the mass of the cell under N(location + std^2,
    std^2).
    """
    reach = -float(ndtri(_TAIL)) * std
    tilted = location + std**2
    first = math.floor((location - reach) / step)
    last = math.ceil((tilted + reach) / step)
    edges = np.asarray(step * np.arange(first, last + 1), dtype=np.float64)
    points = np.exp(edges)
    below, cells, above = _cells((edges - location) / std)
    parts = _cells((edges - tilted) / std)
    mean_below, means, mean_above = (math.exp(location + std**2 / 2) * part for part in parts)
    up = np.clip((means / points[:-1] - cells) / np.expm1(step), 0.0, cells)
    masses = np.zeros(len(points))
    masses[:-1] += cells - up
    masses[1:] += up
    at_first = min(mean_below / points[0], below)
    masses[0] += at_first
    masses[-1] += above
    far = max(mean_above - above * points[-1], 0.0)
    return Spread(step, first, masses, below - at_first, far)


def added(x: Spread, y: Spread, step: float) -> Spread:
    """Returns a spread of the sum of independent `x` and `y`, on a grid that refines theirs.

    Its masses are renormalised to sum to 1: rounding errors would otherwise double from sum to sum.
    """
    x, y = _refined(x, step), _refined(y, step)
    pairs = [_of_pairs(x, y, 0), _of_pairs(y, x, 1)]
    first = min(place for place, masses in pairs if len(masses))
    x_alone = _raised(replace(x, masses=y.zero * x.masses, zero=0.0), first)
    y_alone = _raised(replace(y, masses=x.zero * y.masses, zero=0.0), first)
    pieces = [*pairs, (x_alone.first, x_alone.masses), (y_alone.first, y_alone.masses)]
    total = np.zeros(max(place + len(masses) for place, masses in pieces) - first)
    for place, masses in pieces:
        total[place - first : place - first + len(masses)] += masses
    zero = x.zero * y.zero + x_alone.zero + y_alone.zero
    total *= (1 - zero) / total.sum()
    return _trimmed(Spread(step, first, total, zero, x.far + y.far))


def regridded(law: Spread, grid: float) -> Spread:
    """Returns a spread of `law` on the points exp(i `grid`), i an integer.

    `grid` is the step of `law` times a power of two, which may be below 1.
    """
    if grid <= law.step:
        return _refined(law, grid)
    times = round(grid / law.step)
    places = law.first + np.arange(len(law.masses))
    lower = places // times
    start = int(lower[0])
    up = np.expm1(law.step * (places - times * lower)) / np.expm1(grid)
    length = int(lower[-1]) - start + 2
    masses = np.zeros(length)
    np.add.at(masses, lower - start, law.masses * (1 - up))
    np.add.at(masses, lower - start + 1, law.masses * up)
    return Spread(grid, start, masses, law.zero, law.far)


def _cells(edges: Numbers) -> tuple[float, Numbers, float]:
    """Returns the standard normal masses below, between and above `edges` `[n]`."""
    left, right = ndtr(edges), ndtr(-edges)
    between = np.where(edges[1:] <= 0, np.diff(left), -np.diff(right))
    return float(left[0]), between, float(right[-1])


def _refined(law: Spread, step: float) -> Spread:
    """Returns the same distribution on a finer grid; `step` divides that of `law`."""
    times = round(law.step / step)
    masses = np.zeros((len(law.masses) - 1) * times + 1)
    masses[::times] = law.masses
    return Spread(step, law.first * times, masses, law.zero, law.far)


def _raised(law: Spread, first: int) -> Spread:
    """Returns `law` with all mass below point `first` moved to it and to 0, with the same mean."""
    below = max(first - law.first, 0)
    if below == 0:
        return law
    masses = law.masses[below:].copy() if below < len(law.masses) else np.zeros(1)
    low, points = law.masses[:below], np.exp(law.logarithms[:below])
    raised = float(np.sum(low * points)) / math.exp(law.step * first)
    masses[0] += raised
    return replace(
        law, first=first, masses=masses, zero=law.zero + max(float(low.sum()) - raised, 0.0)
    )


def _lowered(law: Spread, last: int) -> Spread:
    """Returns `law` with all mass above point `last` moved to it, and its excess mean to `far`."""
    length = last - law.first + 1
    masses, above = law.masses[:length].copy(), law.masses[length:]
    masses[-1] += above.sum()
    points = np.exp(law.logarithms)
    far = float(np.sum(above * (points[length:] - points[length - 1])))
    return replace(law, masses=masses, far=law.far + far)


def _trimmed(law: Spread) -> Spread:
    """Returns `law` without points at either end that hold negligible mass in total."""
    means = np.cumsum((law.masses * np.exp(law.logarithms))[::-1])[::-1]
    last = law.first + max(int(np.count_nonzero(means > _TAIL * means[0])) - 1, 0)
    first = law.first + int(np.count_nonzero(np.cumsum(law.masses) <= _TAIL))
    return _raised(_lowered(law, last), min(first, last))


def _of_pairs(x: Spread, y: Spread, least: int) -> tuple[int, Numbers]:
    """Returns masses of sums of a point of `x` and a point of `y` at least `least` steps below it.

    Returns the index of the first mass on the common grid, and the masses `[m]` from there on;
    (0, empty) if there is no such pair. The sum of point s and the point d steps below is
    s (1 + exp(-step d)), which is between k and k + 1 steps above s. All d with the same k are
    added at once, by running sums of masses and of means. The running sums start from below, so
    that the rounding error of the difference of two running sums is small relative to the sum of
    all terms with the same s.
    """
    step, length, ahead = x.step, len(x.masses), x.first - y.first
    distances = np.arange(max(least, ahead - len(y.masses) + 1), ahead + length)
    if len(distances) == 0:
        return 0, np.zeros(0)
    passed = np.floor(np.log1p(np.exp(-step * distances)) / step).astype(int)
    changes = np.flatnonzero(np.diff(passed)) + 1
    nearest = distances[np.concatenate([[0], changes])]
    furthest = distances[np.concatenate([changes - 1, [-1]])]
    result = np.zeros(length + int(passed[0] - passed[-1]) + 1)
    mass, mean = (_running(each, length) for each in (y.masses, y.masses * np.exp(y.logarithms)))
    scaled = x.masses / np.exp(x.logarithms)
    for near, far in zip(nearest.tolist(), furthest.tolist(), strict=True):
        k = int(passed[near - distances[0]])
        upper = slice(length + ahead - near + 1, 2 * length + ahead - near + 1)
        lower = slice(length + ahead - far, 2 * length + ahead - far)
        masses = x.masses * (mass[upper] - mass[lower])
        means = scaled * (mean[upper] - mean[lower])
        excess = math.exp(-step * k) * means + math.expm1(-step * k) * masses
        up = np.clip(excess / math.expm1(step), 0.0, masses)
        at = k - int(passed[-1])
        result[at : at + length] += masses - up
        result[at + 1 : at + 1 + length] += up
    return x.first + int(passed[-1]), result


def _running(numbers: Numbers, margin: int) -> Numbers:
    """Returns `margin` + 1 zeros, cumulative sums `[n]`, and `margin` copies of the last sum."""
    sums = np.cumsum(numbers)
    return np.concatenate([np.zeros(margin + 1), sums, np.full(margin, sums[-1])])
