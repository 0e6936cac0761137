"""Clients with up to s rows that are sampled independently at a common rate.

The rows are at s sites that sample independently, or are examples that a server samples one by one.

*Gaussian noise* (`SeveralSites`). A client has rows x_1, ..., x_s, at most one per site, of norm at
most 1 in units of the bound of *one row*; b_1, ..., b_s are independent Bernoulli(q). With and
without the client a round releases N(sum_i b_i x_i, z^2 I) and N(0, z^2 I), add/remove.

*Dominating pair*: the mixture of N(j, z^2), j ~ Binom(s, q), against N(0, z^2) on the line, for any
rows of any directions. *Proof.* Let S be any test, nu the law of the noise, a = nu(S). By
Neyman-Pearson nu(S - v) <= Phi(Phi^-1(a) + |v| / z), and |sum_i b_i x_i| <= sum_i b_i. So the power
of S is at most sum_j P[Binom(s, q) = j] Phi(Phi^-1(a) + j / z). In the pair on the line one
half-line attains this, for all j at once. Its trade-off curve is therefore below the true one,
and with it, in both directions, its hockey-stick divergence above the true one at every epsilon
(Dong, Roth & Su 2022, Proposition 2.12). Dominating pairs compose, adaptively (Zhu, Dong & Wang
2022, Theorem 10; for mixtures of Gaussians: Choquette-Choo et al. 2024, arXiv 2310.15526). ∎
With fewer rows, shorter ones or smaller rates the sum of the b_i is stochastically smaller and the
bound decreases, since Phi increases. At *more* than s sites there is no guarantee.

*Examples of users* (example-level sampling, ELS: Charles et al. 2024, arXiv 2407.07737, whose
abstract announces a tight user-level accountant for ELS). A step of DP-SGD releases the sum of
clipped gradients of a batch, plus noise of z clipping norms. The unit of privacy is one user with
all examples; the training data contain at most s of them, the same in all steps. Adjacency is
add/remove. Each example is in the batch by a Bernoulli(q) draw, fresh in each step. Each b_i x_i
above is then the gradient of one example, and the proof is the same. The server is trusted with
examples and batches.

*Rényi divergence*: by a split. The noise is a sum of s independent parts of variance z^2 / s; give
each site one, and publish the sites' sums; the round is post-processing of these. The b_i are
independent, so this is a product of s pairs: s times the divergence of Poisson(q) at z / sqrt(s).

*Skellam noise* (`at_several_sites`): parallel rows are not its worst case, and the mixture has no
proof. Skellam noise is divisible into s Skellams of variance mu / s: the split, s events of
Poisson(q), is the bound. Sums of discrete Gaussians are charged as `Gaussian` if the standard
deviation of each is at least three steps. Charged as `DiscreteGaussians` they are not divisible,
and have no bound at more than one site.

*The privacy loss* at x is l(x) = log sum_j p_j exp((j x - j^2 / 2) / z^2), increasing in x from
log p_0. Its inverse is found by Newton's method here: dp-accounting's mixture of Gaussians inverts
it to 1e-6 only, which makes its delta too *small* (by up to 8e-14 an event at one site, q = z =
0.3, against 1e-15 here), and takes ten seconds. Between the points of the grid delta is
interpolated by "connect the dots" (Doroshenko et al. 2022), pessimistically, as for Gaussians.
Counts j that the sum of the b_i exceeds with negligible probability are replaced by s, which is
stochastically larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp, ndtr

from accounting.bounds.library import pld_pmf, stats
from accounting.bounds.library import privacy_loss_distribution as library
from accounting.errors import Unaccountable
from accounting.noises import DiscreteGaussians, Gaussian, Noise, Skellam
from accounting.releases import PoissonSampled, Repeated, SeveralSites

Numbers = NDArray[np.float64]

_TAIL = 0.5 * math.exp(-50)
"""Probability mass beyond the largest loss, which is counted as an infinite loss."""
_TAIL_STDS = 9.8
"""Number of standard deviations beyond which a Gaussian has less than mass `_TAIL`."""
_NEGLIGIBLE = _TAIL / 1000
"""Probability of all counts of sampled rows that are replaced by the largest count."""
_BATCH_SIZE = 1 << 18
_STEPS = 100
_ROUNDING = 1e-6
"""Margin added to the logarithm of a tail probability."""
_COARSE = 2_000
"""Number of losses in an estimate of Rényi divergences."""


def at_several_sites(
    rate: float, sites: int, noise: Noise
) -> PoissonSampled | SeveralSites | Repeated:
    """Returns the release for clients at up to `sites` sites, which sample independently at `rate`.

    Args:
      rate: sampling rate of each site.
      sites: largest number of sites of a client.
      noise: noise of a complete round, relative to the bounds of *one row*; a client has one row
        per site.

    Raises:
      Unaccountable: for discrete Gaussians at more than one site.
    """
    if sites == 1:
        return PoissonSampled(rate, noise)
    match noise:
        case Gaussian():
            return SeveralSites(rate, sites, noise)
        case Skellam(variance=variance, l2=l2, l1=l1, exchanges=exchanges):
            part = Skellam(variance / sites, l2, l1, exchanges)
            return Repeated(sites, PoissonSampled(rate, part))
        case DiscreteGaussians():
            raise Unaccountable(
                f"discrete Gaussian noise has no bound for clients at {sites} sites that "
                "sample independently, since it cannot be divided among sites; use Skellam "
                "noise, or one site per client"
            )


def split(release: SeveralSites) -> PoissonSampled:
    """Returns the release whose `sites`-fold composition bounds `release`.

    Its noise multiplier is that of `release` over sqrt(sites). The bound holds for privacy loss
    distributions and Rényi divergences.
    """
    multiplier = release.of.noise_multiplier / math.sqrt(release.sites)
    return PoissonSampled(release.rate, Gaussian(multiplier))


def losses(release: SeveralSites, grid: float) -> Any:
    """Returns a pessimistic privacy loss distribution, both directions, at multiples of `grid`."""
    if release.rate == 0.0:
        return library.identity(value_discretization_interval=grid)
    pair = _Pair(release)
    low, high = pair.loss(-pair.reach), pair.loss(pair.reach)
    return library.PrivacyLossDistribution(
        _dots(pair.removed, low, pair.largest_loss(), grid), _dots(pair.added, -high, -low, grid)
    )


def largest_loss(release: SeveralSites) -> float:
    """Returns the largest finite loss in the distribution that `losses` returns for one event."""
    return _Pair(release).largest_loss() if release.rate > 0.0 else 0.0


def likely_divergences(release: SeveralSites, orders: Sequence[float]) -> Numbers:
    """Estimates Rényi divergences at `orders`, up to losses of negligible probability."""
    if release.rate == 0.0:
        return np.zeros(len(orders))
    distribution = losses(release, max(largest_loss(release) / _COARSE, 1e-6))
    powers, sides = np.array(orders)[:, None] - 1, []
    for pmf in (distribution._pmf_remove, distribution._pmf_add):
        dense = pmf.to_dense_pmf()
        loss = (dense._lower_loss + np.arange(dense.size)) * dense._discretization
        with np.errstate(divide="ignore"):
            sides.append(logsumexp(np.log(dense._probs) + powers * loss, axis=1))
    return np.asarray(np.maximum(*sides) / powers[:, 0])


def _dots(delta: Any, low: float, high: float, grid: float) -> Any:
    """Returns pessimistic probabilities of losses at multiples of `grid` that span `low` to `high`.

    `delta` is the hockey-stick divergence as a function of epsilons.
    """
    first, last = math.floor(low / grid), math.ceil(high / grid)
    epsilons = np.arange(first, last + 1) * grid
    pieces = np.array_split(epsilons, 1 + len(epsilons) // _BATCH_SIZE)
    deltas = np.clip(np.concatenate([delta(piece) for piece in pieces]), 0.0, 1.0)
    falling = np.maximum.accumulate(deltas[::-1])[::-1]
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, first, last, falling)


def _log_weights(sites: int, rate: float) -> Numbers:
    """Returns log P[Binom(`sites`, `rate`) = j] for j = 0, ..., `sites`.

    The mass of large counts that together are less likely than `_NEGLIGIBLE` is moved to `sites`.
    """
    counts = np.arange(sites + 1)
    log_weights = np.asarray(stats.binom.logpmf(counts, sites, rate))
    beyond = stats.binom.logsf(counts, sites, rate)
    last = int(np.argmax(beyond <= math.log(_NEGLIGIBLE)))
    if last < sites - 1:
        log_weights[last + 1 :] = -np.inf
        log_weights[sites] = beyond[last] + _ROUNDING
    return log_weights


class _Pair:
    """The mixture of N(j, z^2), j ~ Binom(s, q), against N(0, z^2), for q > 0."""

    def __init__(self, release: SeveralSites) -> None:
        self.z = release.of.noise_multiplier
        log_weights = _log_weights(release.sites, release.rate)
        self.log_none = float(log_weights[0])
        likely = np.flatnonzero(log_weights[1:] > -np.inf)
        self.shifts = likely + 1.0
        self.log_weights = log_weights[1:][likely]
        self.reach = _TAIL_STDS * self.z

    def loss(self, x: float) -> float:
        return float(np.logaddexp(self.log_none, logsumexp(self._terms(np.array([x]))[:, 0])))

    def largest_loss(self) -> float:
        """Returns the loss beyond which the mixture has probability mass `_TAIL`, about 1e-22."""

        def beyond(x: float) -> float:
            none = self.log_none + log_ndtr(-x / self.z)
            some = self.log_weights + log_ndtr((self.shifts - x) / self.z)
            return float(np.logaddexp(none, logsumexp(some))) - math.log(_TAIL)

        return self.loss(brentq(beyond, 0.0, self.shifts[-1] + 1.01 * self.reach))

    def removed(self, epsilons: Numbers) -> Numbers:
        """Returns the hockey-stick divergence of the mixture from N(0, z^2) at `epsilons`."""
        x = self._inverse(epsilons)
        above = math.exp(self.log_none) * ndtr(-x / self.z)
        for shift, weight in zip(self.shifts, np.exp(self.log_weights), strict=True):
            above += weight * ndtr((shift - x) / self.z)
        return np.asarray(above - np.exp(epsilons + log_ndtr(-x / self.z)))

    def added(self, epsilons: Numbers) -> Numbers:
        """Returns the hockey-stick divergence of N(0, z^2) from the mixture at `epsilons`."""
        x = self._inverse(-epsilons)
        below = np.exp(epsilons + self.log_none + log_ndtr(x / self.z))
        for shift, log_weight in zip(self.shifts, self.log_weights, strict=True):
            below += np.exp(epsilons + log_weight + log_ndtr((x - shift) / self.z))
        return np.asarray(ndtr(x / self.z) - below)

    def _terms(self, x: Numbers) -> Numbers:
        """Returns the logarithms `[shifts, x]` of the terms of exp(loss) for positive shifts."""
        shifts = self.shifts[:, None]
        return np.asarray(self.log_weights[:, None] + shifts * (x - shifts / 2) / self.z**2)

    def _inverse(self, losses: Numbers) -> Numbers:
        """Returns the x with each of the privacy `losses`; -inf if the loss is larger at every x.

        With log p_0 subtracted, the loss is convex in x and no slope is below 1 / z^2. The least x
        at which a single term reaches the target is at or right of the solution, and Newton's steps
        descend from there.
        """
        x = np.full_like(losses, -np.inf)
        inside = losses > self.log_none
        aims = losses[inside] + np.log(-np.expm1(self.log_none - losses[inside]))
        shifts, weights = self.shifts[:, None], self.log_weights[:, None]
        at = np.min((aims - weights) * self.z**2 / shifts + shifts / 2, axis=0)
        for _ in range(_STEPS):
            terms = self._terms(at)
            total = logsumexp(terms, axis=0)
            slope = (np.exp(terms - total) * shifts).sum(axis=0) / self.z**2
            step = (total - aims) / slope
            at = at - step
            if np.all(np.abs(step) <= 1e-12 * (self.z + np.abs(at))):
                break
        x[inside] = at
        return x
