"""Rényi divergence of any mechanism run on a Poisson sample, add/remove, both directions.

*Statement.* P and Q are the distributions of a round's release with and without a client taking
part: any two distributions, of any noise and any number of exchanges over one cohort, which may
depend on those before. The client takes part, secretly, with probability q: the round is the pair
M = (1 - q) Q + q P against Q. For every integer alpha >= 2: if epsilon(k) is at least D_k(P || Q)
and D_k(Q || P) for every integer k from 2 to alpha, then both D_alpha(M || Q) and D_alpha(Q || M)
are at most log(B) / (alpha - 1), with

    B = sum_{k=0}^{alpha} C(alpha, k) (1 - q)^(alpha - k) q^k e^((k - 1) epsilon(k)),

the exponents of k = 0 and k = 1 being 0. (No factor 3 as in Zhu & Wang 2019, Theorem 5. Compare
Steinke 2022, arXiv 2210.00597, and for symmetric noise Mironov, Talwar & Zhang 2019, Theorem 5.)

*Proof.* D_2 is finite both ways (else there is nothing to prove), so P and Q have the same null
sets, and s = dQ/dP lies in (0, inf) almost everywhere. Write v = 1 - q + q s and u = 1 - q + q / s
= dM/dQ.

1. Forward. e^((alpha - 1) D_alpha(M || Q)) = E_Q[u^alpha], by the binomial theorem the sum of
   C(alpha, k) (1 - q)^(alpha - k) q^k E_Q[(dP/dQ)^k]. The expectation is 1 for k = 0 and k = 1, and
   e^((k - 1) D_k(P || Q)) for k >= 2, so the sum is at most B. As an integral under P it is E_P[s
   u^alpha].
2. The same with P and Q exchanged: E_P[v^alpha] <= B, by D_k(Q || P).
3. Reverse. e^((alpha - 1) D_alpha(Q || M)) = E_Q[u^(1 - alpha)] = E_P[s u^(1 - alpha)]. Let
   theta = (2 alpha - 1) q / (3 + 2 (alpha - 2) q), which is in [0, 1] since 3 q <= 3, and

       phi(s) = theta v^alpha + (1 - theta) s u^alpha - s u^(1 - alpha) + lambda (s - 1),

   lambda such that phi'(1) = 0. If phi >= 0 everywhere, then under P, where E_P[s - 1] = 0,
   E_P[s u^(1 - alpha)] <= theta E_P[v^alpha] + (1 - theta) E_P[s u^alpha] <= B, by 2 and 1. ∎
4. phi >= 0, because phi(1) = theta + (1 - theta) - 1 = 0, phi'(1) = 0, and phi is convex:
   s f(1/s) has the second derivative f''(1/s) / s^3, hence

       phi'' / (alpha (alpha - 1) q^2)
           = theta v^(alpha - 2) + (1 - theta) u^(alpha - 2) / s^3 - u^(-alpha - 1) / s^3,

   which is not negative if and only if (times s^3 u^(alpha + 1))

       theta s^3 v^(alpha - 2) u^(alpha + 1) + (1 - theta) u^(2 alpha - 1) >= 1.

   By weighted AM-GM the left side is at least e^L with, in w = log s,

       L(w) = theta ((alpha - 2) log v + 3 w + (alpha + 1) log u)
              + (1 - theta) (2 alpha - 1) log u.

   log v = log(1 - q + q e^w) and log u = log(1 - q + q e^-w) are convex in w, and no factor is
   negative: L is convex. L(0) = 0. The slopes of log v and log u at 0 are q and -q, so
   L'(0) = theta ((alpha - 2) q + 3 - (alpha + 1) q + (2 alpha - 1) q) - (2 alpha - 1) q
   = theta (3 + 2 (alpha - 2) q) - (2 alpha - 1) q = 0 by the choice of theta. So L >= 0. ∎

Others' participation, rows and roundings may be random, and distributions may depend on history.
Given all of them the pair is as above, and a mixture's divergence is at most the largest (joint
quasi-convexity: van Erven & Harremoes 2014, Theorem 13). Rounds add up, adaptively.

*Several exchanges over one cohort* share one draw: P and Q are then the distributions of all
exchanges together, so their curves are added first, and the sum is amplified. Amplifying first
and then adding gives no bound.

*The unamplified bound* epsilon(alpha) holds too, by the same quasi-convexity; the smaller bound is
used.

*Both directions* of integer noise: let the noise's distribution nu be symmetric about 0, as Skellam
noise and sums of discrete Gaussians are. The reflection x -> e - x maps the pair (nu(. - e), nu) to
(nu, nu(. - e)), so its two divergences are equal, and one bound
(`accounting.bounds.integer_noise`) covers both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp

Divergence = Callable[[int], float]
"""A function that bounds Rényi divergences in both directions, given the integer order."""


def poisson_sampled(divergence: Divergence, rate: float, alpha: int) -> float:
    """Bounds the Rényi divergence, in both directions, of a mechanism on a Poisson sample.

    The bound is that of the module's statement. Binomial weights add up to 1, so B - 1 is a sum of
    weights times e^((k - 1) epsilon(k)) - 1, which is computed without cancellation.

    Args:
      divergence: the mechanism's own divergence at integer orders, in both directions.
      rate: sampling rate q, in [0, 1].
      alpha: integer order, at least 2.
    """
    if rate == 0.0:
        return 0.0
    unamplified = divergence(alpha)
    if rate == 1.0:
        return unamplified
    orders = np.arange(2, alpha + 1)
    ways = gammaln(alpha + 1) - gammaln(orders + 1) - gammaln(alpha - orders + 1)
    growth = np.array([(order - 1) * divergence(order) for order in orders.tolist()])
    with np.errstate(divide="ignore"):  # log(0) at an order with divergence 0
        log_excess = growth + np.log(-np.expm1(-growth))
    terms = ways + orders * math.log(rate) + (alpha - orders) * math.log1p(-rate) + log_excess
    return min(float(np.logaddexp(0.0, logsumexp(terms))) / (alpha - 1), unamplified)
