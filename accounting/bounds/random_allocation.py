"""Random allocation: in every epoch each client takes part in a single slot, drawn in secret.

*Setting.* An epoch is t slots, each with one release. A client draws its slot uniformly, afresh in
each epoch and independently of all else. Slot i releases y_i: the others' sum, noise N(0, z^2 I),
and x_i if the slot is the client's, |x_i| <= 1 in clipping norms; x_i and the others' rows may
depend on all that was released before. Balls in bins: Choquette-Choo et al. 2024, arXiv 2410.06266;
Chua et al. 2024, arXiv 2412.16802. Random allocation: Feldman & Shenfeld 2025, arXiv 2502.08202;
its losses by convolution: Feldman & Shenfeld 2026, arXiv 2602.17284. The dominating pair below is
theirs; the bound by a spread and its proof are not.

*Dominating pair of an epoch*: Q = N(0, z^2 I_t), P = (1/t) sum_i N(e_i, z^2 I_t), with the ratio

    R = dP/dQ = (1/t) sum_i exp(L_i),  under Q all L_i independent, N(-1/(2 z^2), 1/z^2).

*Proof.* Reveal the others' slots and randomness to the adversary; their distribution is the same
with and without the client, so by joint convexity this only raises the divergence. Given the past
the others' sum is then a constant; subtract it. Without the client y_1, ..., y_t is noise: Q. With
it, it is the mixture over slots i of noise with x_i added in slot i alone, so R = (1/t) sum_i
exp(L_i) with L_i = <y_i, x_i> / z^2 - |x_i|^2 / (2 z^2). If |x_i| = 1, L_i has the distribution
above under Q, whatever the past: the L_i are independent. If x_i is shorter, draw an independent
h_i ~ N(0, z^2), r^2 = 1 - |x_i|^2 and L'_i = L_i + r h_i / z^2 - r^2 / (2 z^2): now L'_i has that
distribution, and E[exp(L'_i) | y] = exp(L_i). So R is a conditional mean of the R' of unit rows,
and E_Q f(R) <= E_Q f(R') for every convex f (Jensen). Both divergences at every epsilon are such
means,

    remove: P against Q: E_Q[(R - e^epsilon)_+],   add: Q against P: E_Q[(1 - e^epsilon R)_+]. ∎

*Adjacency*: add/remove, and zero-out, where the client draws a slot and contributes zero: in both
the neighbour without the client is Q, and no other client's slot changes. The proof does not hold
for replace-one, where both sides are mixtures over one secret slot and R is not their ratio. The
larger of the two directions counts.

*Epochs compose* as independent pairs do. Given the past, and given the client's earlier slots (on
which its state may depend), its new slot is uniform and the above applies; if the earlier slots are
unknown, R is the posterior mean of such ratios, and a convex function of a mean is at most the mean
of the function. The ratio of k epochs is a product R_1 ... R_k, and f of it is convex in each
factor, the others being fixed and nonnegative. So from the last epoch back to the first each factor
may be replaced by an independent R', and factors of other events likewise by what dominates them. ∎
Part of an epoch is post-processing of the complete epoch. Several releases by one cohort share its
slot: they are combined into one z, (sum_i z_i^-2)^-1/2. Charging them as separate allocations gives
no bound.

*The bound by a spread.* If E[R' | R] = R then E f(R') >= E f(R): the law of R may be replaced by a
spread of it (`accounting.bounds.spread`), in every epoch, for an upper bound in both directions and
under composition at once, since all of these are convex in each R. So exp(L) / t is spread on a
geometric grid, and t of these are added, partial sums being spread on grids that are fine compared
with their standard deviation. (On R this is "connect the dots": Doroshenko et al. 2022, arXiv
2207.04380.) A mass q at log R = s is a loss s of probability q e^s under P, and a loss -s of
probability q under Q. The part `far` of the mean has no bounded loss: it is P's mass at an infinite
loss. Q's mass at an infinite loss is the mass at R = 0. ∎

*Rounding*: in exact arithmetic the masses of P, and those of Q, sum to 1; the probability of an
infinite loss is raised by the amount by which they do not. This also covers a mean of 1 + r instead
of 1: if the tabulated x stands for the true x / (1 + r), then (1 - c x / (1 + r))_+ <= (1 - c x)_+
+ r for every c >= 0. Rounding errors of moving mass between neighbouring points of the grid are
smaller still.

*No amplification* is claimed for t = 1, nor where R exceeds double precision: by joint
quasi-convexity the Gaussian mechanism at z, that of a single slot, is a bound at any t.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from accounting.bounds.library import pld_pmf
from accounting.bounds.library import privacy_loss_distribution as library
from accounting.bounds.spread import Numbers, Spread, added, lognormal, regridded

_FINENESS = 40
"""Grid steps per standard deviation of a spread on the grid. Compared with 80 steps, epsilon was at
most 0.001 larger (t = 10 to 50, z = 0.3 to 5, delta 1e-5)."""
_MOST_POINTS = 1 << 14
_LARGEST_LOSS = 600.0
"""Largest loss for which exp(loss) and its inverse are well within double precision."""


def losses(slots: int, noise_multiplier: float, grid: float) -> Any:
    """Returns one epoch's privacy losses in both directions, rounded pessimistically to a grid.

    Args:
      slots: number of slots t of an epoch.
      noise_multiplier: noise standard deviation z over the clipping norm.
      grid: spacing of the losses.

    Returns:
      A `PrivacyLossDistribution` of dp-accounting.
    """
    if _unamplified(slots, noise_multiplier):
        return library.from_gaussian_mechanism(
            standard_deviation=noise_multiplier, value_discretization_interval=grid
        )
    ratio = regridded(_ratio(slots, noise_multiplier, grid), grid)
    last = ratio.first + len(ratio.masses) - 1
    removed = ratio.masses * np.exp(ratio.logarithms)
    return library.PrivacyLossDistribution(
        _probabilities(grid, ratio.first, removed, ratio.far),
        _probabilities(grid, -last, ratio.masses[::-1], ratio.zero),
    )


def loss_std(slots: int, noise_multiplier: float) -> float:
    """Returns the standard deviation of an epoch's likelihood ratio, capped at 1.

    It is sqrt((exp(1/z^2) - 1) / t) for t slots, under the neighbour without the client.
    """
    return min(1.0, math.sqrt(math.expm1(min(1 / noise_multiplier**2, 50.0)) / slots))


@functools.lru_cache(maxsize=256)
def largest_loss(slots: int, noise_multiplier: float) -> float:
    """Estimates the largest magnitude of a finite privacy loss of one epoch (`losses`)."""
    if _unamplified(slots, noise_multiplier):
        return _far_out(noise_multiplier)
    ratio = _ratio(slots, noise_multiplier, 1.0)
    return float(np.abs(ratio.logarithms).max())


def _unamplified(slots: int, z: float) -> bool:
    return slots == 1 or _far_out(z) > _LARGEST_LOSS


def _far_out(z: float) -> float:
    """Returns the privacy loss of the Gaussian mechanism at 10 standard deviations."""
    return 0.5 / z**2 + 10 / z


def _ratio(slots: int, z: float, grid: float) -> Spread:
    """Returns a spread of the likelihood ratio R under Q; its step is that of `_step`."""
    terms = {1: lognormal(-0.5 / z**2 - math.log(slots), 1 / z, _step(1, z, grid))}

    def sum_of(count: int) -> Spread:
        if count not in terms:
            half = count // 2
            terms[count] = added(sum_of(half), sum_of(count - half), _step(count, z, grid))
        return terms[count]

    return sum_of(slots)


def _step(count: int, z: float, grid: float) -> float:
    """Returns the step of the logarithmic grid for a sum of `count` terms exp(L_i) / t.

    The step is `grid` times a power of two, and a small fraction of the sum's relative standard
    deviation, unless the grid would have too many points. A sum of more terms never has a coarser
    grid, so the sum's grid contains the grids of its terms.
    """
    fine = max(loss_std(count, z) / _FINENESS, 2 * _far_out(z) / _MOST_POINTS)
    return math.ldexp(grid, math.floor(math.log2(fine / grid)))


def _probabilities(grid: float, first: int, masses: Numbers, infinite: float) -> Any:
    """Returns a pessimistic distribution of losses `grid` * (`first` + i) with `masses` `[n]`.

    The mass `infinite` of the infinite loss is raised by the error of the sum of all masses.
    """
    infinite = min(infinite + abs(1.0 - infinite - float(masses.sum())), 1.0)
    return pld_pmf.DensePLDPmf(grid, first, masses, infinite, True)
