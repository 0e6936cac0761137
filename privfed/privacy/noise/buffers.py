"""Buffered linear Toeplitz noise: correlated over all rounds, with the memory of a few rows.

C has the column c_0 = 1, c_i = sum_j omega_j theta_j^(i - 1), with decays theta `[d]` and outputs
omega `[d]`. Y = C^-1 Z needs d rows of memory: Y_t = Z_t - sum_j omega_j B_j, after which each
buffer becomes B_j <- theta_j B_j + Y_t. A client's columns of C overlap; what that costs is in
`accounting.bounds.toeplitz_sensitivity`.

*Inverse.* With v = omega^(1/2), the recursion has the symmetric matrix M = diag(theta) - v v^T, and
the column of C^-1 is 1, -v^T M^(i-1) v: buffered too, with the eigenvalues of M as decays and the
squares of v in its eigenvectors, negative, as outputs. The decays interlace.

*Search.* Decays of C and of C^-1 are laid out as 1 > theta_1 > hat_1 > theta_2 > ... > theta_d >
hat_d. Then omega_i = prod_j (theta_i - hat_j) / prod_(j != i) (theta_i - theta_j) > 0, and the sum
of omega is sum_i (theta_i - hat_i). All but the last are cumulative products of numbers in (0, 1);
hat_d, which may be negative, takes a share of what the other differences leave of 1. So the column
never increases, by construction, and every set of buffers with distinct, positive decays, positive
outputs and a sum below 1 has such a layout. Differences are sums of positive gaps: no digits are
lost where decays crowd.

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
from scipy.special import expit, logit

from accounting.bounds.toeplitz_sensitivity import (
    buffered_column,
    buffered_sensitivity,
    powers,
    refuse_unproven,
    sum_of_shifts,
)
from privfed.privacy.noise.factorization import relative_noise

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
        sensitivity = buffered_sensitivity(self.decays, self.outputs, separation, rounds)
        participations = -(-rounds // separation)
        return relative_noise(self.inverse_sums(rounds), sensitivity / math.sqrt(participations))

    def inverse_sums(self, rounds: int) -> Numbers:
        """The prefix sums `[rounds]` of the column of C^-1, which is the column of A C^-1."""
        decays, outputs = self.inverse()
        return _sums(1 - decays, outputs, rounds)


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
    at, least = _start(count, nearest), math.inf
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
    layout = _layout(at)
    return Buffers(tuple(layout.decays.tolist()), tuple(layout.outputs.tolist()))


def _start(count: int, nearest: float) -> Numbers:
    """The logits `[2 d]` of decays whose distances from 1 grow geometrically from `nearest`."""
    distances = np.geomspace(min(nearest, _FURTHEST / 4), _FURTHEST, 2 * count)
    points, gaps = 1 - distances, np.diff(distances)
    products = points[:-1] / np.concatenate([[1.0], points[:-2]])
    share = gaps[-1] / (1 - gaps[:-1:2].sum())
    return np.asarray(logit([*products, share]))


def _loss(logits: Numbers, rounds: int, separation: int) -> float:
    """The logarithm of the noise of the buffers at `logits` `[2 d]`, but for a constant."""
    layout = _layout(logits)
    column = buffered_column(layout.decays.tolist(), layout.outputs.tolist(), rounds)
    sums = _sums(layout.distances, layout.inverse_outputs, rounds)
    sensitivity = float(np.linalg.norm(sum_of_shifts(column, separation)))
    return math.log(relative_noise(sums, sensitivity))


@dataclass(frozen=True)
class _Layout:
    """Decays theta and outputs of C, and 1 - hat and outputs of C^-1, `[d]` each."""

    decays: Numbers
    outputs: Numbers
    distances: Numbers
    inverse_outputs: Numbers


def _layout(logits: Numbers) -> _Layout:
    """The interlacing decays at `logits` `[2 d]`, and the outputs that follow from them."""
    shares, rests = expit(logits), expit(-logits)
    products = np.cumprod(shares[:-1])
    gaps = np.concatenate([products[:-1] * rests[1:-1], [0.0]])
    left = rests[0] + gaps[1:-1:2].sum() + products[-1]  # of 1, by the differences before the last
    gaps[-1] = shares[-1] * left
    below = np.cumsum(np.triu(np.tile(gaps, (len(logits), 1))), axis=1)
    between = np.zeros((len(logits), len(logits)))
    between[:, 1:] = below
    differences = between - between.T
    inverse = differences[1::2, 0::2], differences[1::2, 1::2]
    return _Layout(
        products[0::2],
        _outputs(differences[0::2, 1::2], differences[0::2, 0::2]),
        rests[0] + between[0, 1::2],
        _outputs(*inverse),
    )


def _outputs(across: Numbers, among: Numbers) -> Numbers:
    """The outputs `[d]`, by differences `[d, d]` across to the other decays and among these."""
    return np.asarray(np.prod(across / (among + np.eye(len(among))), axis=1))


def _sums(distances: Numbers, outputs: Numbers, rounds: int) -> Numbers:
    """The prefix sums `[rounds]` of the buffered column of decays 1 - `distances`, below 1."""
    sums = np.ones(rounds)
    for distance, output in zip(distances, outputs, strict=True):
        sums += output * (1 - powers(1 - distance, rounds)) / distance
    return sums
