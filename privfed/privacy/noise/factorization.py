"""Factorizations for noise correlated over rounds: optimal bands, and buffers.

*Bands* with the least noise on the prefix sums of a run. The coefficients c_0 = 1, c_1, ...,
c_(bands-1) minimise log(|c|^2 |A C^-1|_F^2) over T rounds, with A the prefix sums. A client's
participations are at least `bands` rounds apart, so its columns of C are disjoint, and the
sensitivity is sqrt(k) |c| for any coefficients. The optimisation therefore needs no proof; if a run
has another number of rounds than the optimisation assumed, it loses accuracy, never privacy.

*Gradient.* With w = C^-1 1 and u_t = T - t, |A C^-1|_F^2 = sum_t u_t w_t^2. Differentiating C w = 1
by c_j gives C dw = -(w shifted by j), hence -sum_t lambda_t w_(t-j), with C^T lambda = 2 u w: two
filters, one of them backwards in time, and a correlation.

Source: McKenna 2024, arXiv 2405.15913.

*Noise on prefix sums.* Releases are x_t + Y_t with C Y = Z, and Z has independent rows. C `[T, T]`
is lower-triangular Toeplitz; its column from the diagonal downwards is given by its coefficients c
`[bands]`, zero after them. A model that sums releases has the noise A C^-1 Z, with A the
lower-triangular ones.

*Buffers* (buffered linear Toeplitz noise): correlated over all rounds, with a memory of a few rows.
C has the column c_0 = 1, c_i = sum_j omega_j theta_j^(i - 1), with decays theta `[d]` and outputs
omega `[d]`. Y = C^-1 Z needs d rows of memory: Y_t = Z_t - sum_j omega_j B_j, after which each
buffer becomes B_j <- theta_j B_j + Y_t. A client's columns of C overlap; for the sensitivity see
`accounting.bounds.toeplitz_sensitivity`.

*Inverse.* With v = omega^(1/2), the recursion has the symmetric matrix M = diag(theta) - v v^T, and
the column of C^-1 is 1, -v^T M^(i-1) v: buffered too, with the eigenvalues of M as decays and the
squares of v in its eigenvectors, negative, as outputs. The decays interlace.

*Search.* Decays of C and of C^-1 are laid out as 1 > theta_1 > hat_1 > theta_2 > ... > theta_d >
hat_d. Then omega_i = prod_j (theta_i - hat_j) / prod_(j != i) (theta_i - theta_j) > 0, and the sum
of omega is sum_i (theta_i - hat_i). All but the last are cumulative products of numbers in (0, 1);
hat_d, which may be negative, takes a fraction of 1 minus the other differences. So the column
never increases, by construction, and every set of buffers with distinct, positive decays, positive
outputs and a sum below 1 has such a layout. Differences are sums of positive gaps: no precision is
lost where decays are close.

Source: Dvijotham et al. 2024, arXiv 2404.16706; several participations: McMahan, Xu & Zhang 2024,
arXiv 2408.08868; the inverse: McMahan & Pillutla 2025, arXiv 2504.21413.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from accounting.bounds.toeplitz_sensitivity import (
    buffered_column,
    buffered_sensitivity,
    powers,
    refuse_unproven,
    sum_of_shifts,
)
from privfed.core.deferred import optimize, signal

Numbers = NDArray[np.float64]


def square_root(bands: int) -> Numbers:
    """Returns the first coefficients `[bands]` of (1 - x)^(-1/2): 1, 1/2, 3/8, 5/16, ...

    c_j = c_(j-1) (2 j - 1) / (2 j). With as many bands as rounds, C C = A, the lower-triangular
    matrix of ones. Source: Fichtenberger, Henzinger & Upadhyay 2023; cut after `bands`: Kalinin &
    Lampert 2024, arXiv 2405.13763.
    """
    steps = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])


def inverse_sums(coefficients: Numbers, rounds: int) -> Numbers:
    """Returns the prefix sums w `[rounds]` of C^-1's first column: C^-1 times a vector of ones.

    With A the lower-triangular matrix of ones, A C^-1 is Toeplitz, and w is its first column.
    """
    return np.asarray(signal.lfilter([1.0], coefficients[:rounds], np.ones(rounds)))


def prefix_noise(coefficients: Numbers, rounds: int) -> float:
    """Returns the root mean square noise on prefix sums, relative to independent noise.

    Both noises give the same guarantee. A client's participations are at least as many rounds apart
    as there are `coefficients` c, so k of them change C x by sqrt(k) |c|, and the ratio is
    |c| |A C^-1|_F / |A|_F, with A the lower-triangular matrix of ones.
    """
    norm = float(np.linalg.norm(coefficients))
    return relative_noise(inverse_sums(coefficients, rounds), norm)


def relative_noise(sums: Numbers, sensitivity: float) -> float:
    """Returns |A C^-1|_F / |A|_F times `sensitivity`, the result of `prefix_noise` in general.

    `sums` `[rounds]` is the first column of A C^-1. `sensitivity` is that of k participations over
    sqrt(k), their sensitivity under independent noise. If a client's columns overlap, it is larger
    than |c|: see `accounting.bounds.toeplitz_sensitivity`.
    """
    weights = entry_counts(len(sums))
    return sensitivity * math.sqrt(float(weights @ sums**2) / float(weights.sum()))


def entry_counts(rounds: int) -> Numbers:
    """Returns T, ..., 1 `[T]`, with T = `rounds`.

    Entry i = 0, ... of a lower-triangular Toeplitz matrix's first column occurs T - i times in it.
    """
    return np.arange(rounds, 0, -1, dtype=float)


UNIT = 2.0**-20
"""Unit of coefficients: they are integer multiples of it, so products with integers are exact."""
_LARGEST = 0.9999
_STEPS = 5_000
_RESTARTS = 50
_STAYS = 1e-9
"""Least decrease of the logarithm of the loss with which a search is restarted."""
_OVERFLOWN = 1e6
"""Logarithm of the loss if the noise overflows."""


@lru_cache(maxsize=64)
def optimal_bands(bands: int, rounds: int) -> tuple[float, ...]:
    """Returns the coefficients (c_0 = 1, c_1, ...) of at most `bands` bands for a run of `rounds`.

    The coefficients are multiples of `UNIT` in [0, 1], with at most the noise of `square_root`.
    There are min(bands, rounds) coefficients: further ones would only increase |c|. Raises
    `ValueError` for fewer than one band or round.
    """
    if bands < 1 or rounds < 1:
        raise ValueError(
            f"there are {bands} bands and {rounds} rounds; expected at least one of each"
        )
    root = square_root(min(bands, rounds))
    solved = _searched(root[1:], rounds)
    best = min((_rounded(solved), _rounded(root[1:])), key=lambda free: loss(free, rounds)[0])
    return (1.0, *best.tolist())


def loss(free: Numbers, rounds: int) -> tuple[float, Numbers]:
    """Returns log(|c|^2 |A C^-1|_F^2) for c = (1, *free), and its gradient by `free`.

    A and C are lower-triangular matrices of size `rounds`: A of ones, and C Toeplitz with first
    column c, padded by zeros. If numbers overflow, the result is 1e6 with a zero gradient.
    """
    c = np.concatenate([[1.0], free])
    weights = entry_counts(rounds)
    with np.errstate(over="ignore", invalid="ignore"):
        w = inverse_sums(c, rounds)
        error = float(weights @ w**2)
        adjoint = signal.lfilter([1.0], c, (2 * weights * w / error)[::-1])[::-1]
    if not (math.isfinite(error) and np.isfinite(adjoint).all()):
        return _OVERFLOWN, np.zeros_like(free)
    lagged = signal.correlate(adjoint, w)[rounds : rounds + len(free)]
    norm = float(c @ c)
    return math.log(norm) + math.log(error), 2 * free / norm - lagged


def _searched(start: Numbers, rounds: int) -> Numbers:
    """Returns coefficients c_1, ... that locally minimise `loss`, by L-BFGS from `start`.

    Restarts from the result so far reset its memory.
    """
    at, least = start, math.inf
    for _ in range(_RESTARTS if len(start) else 0):
        result = optimize.minimize(
            loss,
            at,
            args=(rounds,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, _LARGEST)] * len(start),
            options={"maxiter": _STEPS, "maxfun": 2 * _STEPS, "ftol": 1e-12, "gtol": 1e-8},
        )
        at = np.asarray(result.x)
        if least - result.fun <= _STAYS:
            break
        least = float(result.fun)
    return at


def _rounded(free: Numbers) -> Numbers:
    return np.asarray(np.round(free / UNIT) * UNIT)


MOST_BUFFERS = 8
_STARTS = (1.0, 2.0, 5.0)
"""Least 1 - theta at which a search starts, over 1 / min(separation, rounds)."""
_FURTHEST = 0.7
"""Largest 1 - hat at which a search starts."""
_REACH = 20.0
"""Bound on the logits that are searched."""
_BUFFER_RESTARTS = 20
_BUFFER_STAYS = 1e-7
"""Least decrease of the logarithm of the noise with which a search is restarted."""


@dataclass(frozen=True)
class Buffers:
    """The decays theta `[d]` and weights omega `[d]` of a column whose sensitivity is proven.

    Raises `accounting.errors.Unaccountable` unless omega >= 0, 0 <= theta < 1, sum omega <= 1.
    """

    decays: tuple[float, ...]
    outputs: tuple[float, ...]

    def __post_init__(self) -> None:
        refuse_unproven(self.decays, self.outputs)

    def column(self, rounds: int) -> Numbers:
        """Returns the column c `[rounds]` of C."""
        return buffered_column(self.decays, self.outputs, rounds)

    def inverse(self) -> tuple[Numbers, Numbers]:
        """Returns decays `[d]` in [-1, 1), increasing, and non-positive outputs `[d]`, of C^-1."""
        root = np.sqrt(self.outputs)
        decays, vectors = np.linalg.eigh(np.diag(self.decays) - np.outer(root, root))
        return decays, -((root @ vectors) ** 2)

    def noise(self, rounds: int, separation: int) -> float:
        """Returns the root mean square noise on prefix sums, relative to independent noise.

        Both noises give the same guarantee, for clients whose participations are at least
        `separation` rounds apart. The ratio is the sensitivity over sqrt(k),
        k = ceil(rounds / separation), times |A C^-1|_F over |A|_F, with A the lower-triangular
        matrix of ones.
        """
        sensitivity = buffered_sensitivity(self.decays, self.outputs, separation, rounds)
        participations = -(-rounds // separation)
        return relative_noise(self.inverse_sums(rounds), sensitivity / math.sqrt(participations))

    def inverse_sums(self, rounds: int) -> Numbers:
        """Returns the prefix sums `[rounds]` of the column of C^-1: the column of A C^-1."""
        decays, outputs = self.inverse()
        return _sums(1 - decays, outputs, rounds)


@lru_cache(maxsize=64)
def optimal_buffers(count: int, rounds: int, separation: int) -> Buffers:
    """Returns `count` buffers that minimise the noise on the prefix sums of a run of `rounds`.

    The minimum is the best of several local searches, and never noisier than independent noise (the
    case of outputs 0). Clients' participations are at least `separation` rounds apart. Raises
    `ValueError` unless the count is in 1..`MOST_BUFFERS`, and rounds and separation at least 1.
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
    """Returns `count` buffers that locally minimise the noise; theta_1 starts at 1 - `nearest`."""
    at, least = _start(count, nearest), math.inf
    for _ in range(_BUFFER_RESTARTS):
        result = optimize.minimize(
            _loss,
            at,
            args=(rounds, separation),
            method="L-BFGS-B",
            bounds=[(-_REACH, _REACH)] * len(at),
            options={"maxfun": 20_000, "maxiter": 2_000, "ftol": 1e-11},
        )
        at = np.asarray(result.x)
        if least - result.fun <= _BUFFER_STAYS:
            break
        least = float(result.fun)
    layout = _layout(at)
    return Buffers(tuple(layout.decays.tolist()), tuple(layout.outputs.tolist()))


def _start(count: int, nearest: float) -> Numbers:
    """Returns the arguments `[2 count]` of `_layout` at which the search for buffers starts.

    The decays of C and of C^-1 then alternate, and their distances from 1 grow geometrically, from
    `nearest` (at most `_FURTHEST` / 4) to `_FURTHEST`.
    """
    distances = np.geomspace(min(nearest, _FURTHEST / 4), _FURTHEST, 2 * count)
    points, gaps = 1 - distances, np.diff(distances)
    products = points[:-1] / np.concatenate([[1.0], points[:-2]])
    share = gaps[-1] / (1 - gaps[:-1:2].sum())
    return np.asarray(logit([*products, share]))


def _loss(logits: Numbers, rounds: int, separation: int) -> float:
    """Returns the logarithm of the noise of the buffers at `logits` `[2 d]`, up to a constant."""
    layout = _layout(logits)
    column = buffered_column(layout.decays.tolist(), layout.outputs.tolist(), rounds)
    sums = _sums(layout.distances, layout.inverse_outputs, rounds)
    sensitivity = float(np.linalg.norm(sum_of_shifts(column, separation)))
    return math.log(relative_noise(sums, sensitivity))


@dataclass(frozen=True)
class _Layout:
    """Decays and outputs of C; and, for C^-1, distances of decays from 1, and outputs."""

    decays: Numbers
    outputs: Numbers
    distances: Numbers
    inverse_outputs: Numbers


def _layout(logits: Numbers) -> _Layout:
    """Returns the interlacing decays of C and C^-1 at `logits` `[2 d]`, and the outputs of both."""
    shares, rests = expit(logits), expit(-logits)
    products = np.cumprod(shares[:-1])
    gaps = np.concatenate([products[:-1] * rests[1:-1], [0.0]])
    left = rests[0] + gaps[1:-1:2].sum() + products[-1]  # 1 minus the earlier differences
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
    """Returns outputs `[d]` of one factor's decays, C's or C^-1's.

    `across` `[d, d]` has their differences from the other factor's decays; `among` `[d, d]` has the
    differences between them.
    """
    return np.asarray(np.prod(across / (among + np.eye(len(among))), axis=1))


def _sums(distances: Numbers, outputs: Numbers, rounds: int) -> Numbers:
    """Returns prefix sums `[rounds]` of a buffered column with decays 1 - `distances`, below 1."""
    sums = np.ones(rounds)
    for distance, output in zip(distances, outputs, strict=True):
        sums += output * (1 - powers(1 - distance, rounds)) / distance
    return sums
