"""Buffered linear Toeplitz noise: correlated over all rounds, with the memory of a few rows.

C has the column c_0 = 1, c_i = sum_j omega_j theta_j^(i - 1), with decays theta `[d]` and outputs
omega `[d]`. Y = C^-1 Z needs d rows of memory: Y_t = Z_t - sum_j omega_j B_j, after which each
buffer becomes B_j <- theta_j B_j + Y_t. A client's columns of C overlap; what that costs is in
`accounting.toeplitz_sensitivity`.

*Inverse.* With v = omega^(1/2), the recursion has the symmetric matrix M = diag(theta) - v v^T, and
the column of C^-1 is 1, -v^T M^(i-1) v: buffered too, with the eigenvalues of M as decays and the
squares of v in its eigenvectors, negative, as outputs. The decays interlace.

*Search.* Decays of C and of C^-1 are laid out as 1 > theta_1 > hat_1 > theta_2 > ... > hat_d > 0,
by cumulative products of numbers in (0, 1). Then omega_i = prod_j (theta_i - hat_j) /
prod_(j != i) (theta_i - theta_j) > 0, and sum omega = sum_i (theta_i - hat_i) < 1: the column is
non-negative and never increases, by construction. Differences are taken of -log(theta), the depths,
and so lose no digits where decays crowd at 1 or at 0.

Source: Dvijotham et al. 2024, arXiv 2404.16706; several participations: McMahan, Xu & Zhang 2024,
arXiv 2408.08868; the inverse: McMahan & Pillutla 2025, arXiv 2504.21413.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logit

from accounting.toeplitz_sensitivity import (
    buffered_column,
    buffered_sensitivity,
    powers,
    refuse_unproven,
    sum_of_shifts,
)
from privfed.privacy.factorization.prefix_noise import relative_noise

Numbers = NDArray[np.float64]

MOST_BUFFERS = 8
_STARTS = (1.0, 2.0, 5.0)
"""The least 1 - theta at which a search starts, over 1 / min(separation, rounds)."""
_FURTHEST = 0.7
"""The largest 1 - hat at which a search starts."""
_REACH = 20.0
"""The bound on the logits that are searched."""
_RESTARTS = 20
_STAYS = 1e-7
"""A restart that lowers the logarithm of the noise by no more ends the search."""


@dataclass(frozen=True)
class Buffers:
    """Decays theta `[d]` and outputs omega `[d]` of a column that is proven to bound sensitivity.

    Raises `accounting.errors.Unaccountable` unless omega >= 0, 0 <= theta < 1, sum omega <= 1.
    """

    decays: tuple[float, ...]
    outputs: tuple[float, ...]

    def __post_init__(self) -> None:
        refuse_unproven(self.decays, self.outputs)

    def column(self, rounds: int) -> Numbers:
        """The column c `[rounds]` of C."""
        return buffered_column(self.decays, self.outputs, rounds)

    def inverse(self) -> tuple[Numbers, Numbers]:
        """Decays `[d]` in [-1, 1), increasing, and outputs `[d]`, none positive, of C^-1."""
        root = np.sqrt(self.outputs)
        decays, vectors = np.linalg.eigh(np.diag(self.decays) - np.outer(root, root))
        return decays, -((root @ vectors) ** 2)

    def noise(self, rounds: int, separation: int) -> float:
        """The rms noise on prefix sums over `rounds`, against independent noise's.

        Both are at the same guarantee, for clients whose participations are at least `separation`
        rounds apart: sensitivity over sqrt(k), k = ceil(rounds / separation), times |A C^-1|_F
        over |A|_F.
        """
        decays, outputs = self.inverse()
        sensitivity = buffered_sensitivity(self.decays, self.outputs, separation, rounds)
        participations = -(-rounds // separation)
        return relative_noise(
            _sums(1 - decays, outputs, rounds), sensitivity / math.sqrt(participations)
        )


@lru_cache(maxsize=64)
def optimal_buffers(count: int, rounds: int, separation: int) -> Buffers:
    """The `count` buffers whose noise on the prefix sums of a run of `rounds` is least.

    For clients whose participations are at least `separation` rounds apart, and never noisier than
    independent noise, which buffers of output 0 are. Raises `ValueError` for a count outside
    1..`MOST_BUFFERS`, and for fewer than one round or a separation below one.
    """
    if not 1 <= count <= MOST_BUFFERS or rounds < 1 or separation < 1:
        raise ValueError(
            f"there are {count} buffers for {rounds} rounds at separation {separation}; expected 1 "
            f"to {MOST_BUFFERS} buffers, and at least one round and separation"
        )
    independent = Buffers((0.0,) * count, (0.0,) * count)
    if rounds == 1:
        return independent
    apart = min(separation, rounds)
    tried = [_solved(count, rounds, apart, start / apart) for start in _STARTS]
    return min((*tried, independent), key=lambda each: each.noise(rounds, separation))


def _solved(count: int, rounds: int, separation: int, nearest: float) -> Buffers:
    """The buffers where a search ends that starts with theta_1 = 1 - `nearest`."""
    distances = np.geomspace(min(nearest, _FURTHEST / 4), _FURTHEST, 2 * count)
    decays = np.concatenate([[1.0], 1 - distances])
    at, least = logit(decays[1:] / decays[:-1]), math.inf
    for _ in range(_RESTARTS):
        result = minimize(
            _loss,
            at,
            args=(rounds, separation),
            method="L-BFGS-B",
            bounds=[(-_REACH, _REACH)] * len(at),
            options={"maxfun": 20_000, "maxiter": 2_000, "ftol": 1e-11},
        )
        at = np.asarray(result.x)
        if least - result.fun <= _STAYS:
            break
        least = float(result.fun)
    theta, hat = _depths(at)
    return Buffers(tuple(np.exp(-theta).tolist()), tuple(_outputs(theta, hat).tolist()))


def _loss(logits: Numbers, rounds: int, separation: int) -> float:
    """The logarithm of the noise of the buffers at `logits` `[2 d]`, but for a constant."""
    theta, hat = _depths(logits)
    column = buffered_column(np.exp(-theta).tolist(), _outputs(theta, hat).tolist(), rounds)
    sums = _sums(-np.expm1(-hat), _outputs(hat, theta), rounds)
    sensitivity = float(np.linalg.norm(sum_of_shifts(column, separation)))
    return math.log(relative_noise(sums, sensitivity))


def _depths(logits: Numbers) -> tuple[Numbers, Numbers]:
    """-log(theta) `[d]` and -log(hat) `[d]`, increasing: the decays are products of sigmoids."""
    depths = np.cumsum(np.logaddexp(0.0, -logits))
    return depths[0::2], depths[1::2]


def _outputs(these: Numbers, inverse: Numbers) -> Numbers:
    """The outputs `[d]` of the decays of depths `these`, where the inverse's are `inverse`."""
    differences = np.expm1(these[:, None] - these)
    np.fill_diagonal(differences, -1.0)
    ratios = np.expm1(these[:, None] - inverse) / differences
    return np.asarray(np.exp(-these) * np.prod(ratios, axis=1))


def _sums(distances: Numbers, outputs: Numbers, rounds: int) -> Numbers:
    """The prefix sums `[rounds]` of the buffered column of decays 1 - `distances`, below 1."""
    sums = np.ones(rounds)
    for distance, output in zip(distances, outputs, strict=True):
        sums += output * (1 - powers(1 - distance, rounds)) / distance
    return sums
