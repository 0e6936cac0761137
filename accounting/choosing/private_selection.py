"""Privacy of the best of a random number of runs: bounds from those of a single run.

A mechanism Q is run K times, each time with fresh randomness. The selection A releases only the
best of the answers, by an order fixed beforehand. K follows a `Repetitions` law with E[x^K] = φ(x),
and remains secret. Q may choose its parameters at random, for example one of several learning
rates, as long as every choice has the same bounds.

*Ties.* Give each answer an independent uniform number as tie-breaker. Answers are then in a strict
order. The choice among equal answers has the same distribution as by position, since answers are
exchangeable.

*The density of A.* With q(y) the probability that Q answers worse than y, A has the density
φ'(q(y)) with respect to Q, φ'(x) = E[K x^(K-1)]. For the truncated negative binomial law φ'(x) =
E[K] γ^(η+1) (1 - (1 - γ) x)^-(η+1), between 0 and E[K].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from accounting.choosing.repetitions import Repetitions

_STEPS = 24


def selected_divergences(
    orders: np.ndarray, once: np.ndarray, repetitions: Repetitions
) -> np.ndarray:
    """Bounds the Rényi divergences of A, the best of K runs, from those of a single run Q.

    Papernot & Steinke 2022, Theorem 2: for all orders λ > 1 and λ' >= 1, at which the divergences
    of Q are at most ε and ε', the divergence of A of order λ is at most

        ε + (1 + η) (1 - 1/λ') ε' + (1 + η) log(1/γ) / λ' + log E[K] / (λ - 1).

    Here η and γ are the shape and gamma of `repetitions`, the law of K. A bound at a higher order
    is also valid at a lower one.

    Args:
      orders: orders above 1, ascending, shape [n].
      once: divergences of a single run at these orders, shape [n].
      repetitions: law of the number of runs.

    Returns:
      The bounds, shape [n].
    """
    eta, log_gamma = repetitions.shape, math.log(repetitions.gamma)
    price = (1 + eta) * np.min((1 - 1 / orders) * once - log_gamma / orders)
    bounds = once + price + math.log(repetitions.mean) / (orders - 1)
    return np.asarray(np.minimum.accumulate(bounds[::-1])[::-1])


def selected_epsilon(
    epsilon: Callable[[float], float | None], repetitions: Repetitions, delta: float
) -> float | None:
    """Returns a bound on epsilon at `delta` of A, the best of K runs; None without a bound.

    `epsilon` bounds the epsilon of a single run Q as a function of delta, or returns None. K has
    the law `repetitions`, with shape η and gamma γ.

    For every e' with δ_Q(e') (1 - γ) <= γ (exp(e') - 1), and every e,

        δ_A(e + (η + 1) e') <= E[K] δ_Q(e),

    where δ_Q and δ_A bound the hockey-stick divergences in both directions. (The same condition and
    bound as Koskela, Redberg & Wang 2024, *Privacy profiles for private selection*.)

    *Proof.* Let q and q' be the values of q(y) on the two neighbours, with q(y) and the density φ'
    as in the module's documentation. By the definition of δ_Q, 1 - q' <= exp(e') (1 - q) +
    δ_Q(e'), so that

        1 - (1 - γ) q' = γ + (1 - γ)(1 - q')
                      <= exp(e') (γ + (1 - γ)(1 - q)) + (1 - γ) δ_Q(e') - γ (exp(e') - 1),

    where the last two terms sum to at most 0. Hence, at every y,
    φ'(q) <= exp((η + 1) e') φ'(q'). With c = e + (η + 1) e',

        ∫ [Q φ'(q) - exp(c) Q' φ'(q')]_+  <=  ∫ φ'(q) [Q - exp(e) Q']_+  <=  E[K] δ_Q(e),

    since φ' is at most φ'(1) = E[K]. The other direction follows with the neighbours exchanged. ∎

    Any e' that meets the condition is valid, so an imperfect search only makes the bound less
    tight: each δ' gives one e', the larger of `epsilon(δ')` and log(1 + δ' (1 - γ) / γ).
    """
    once = epsilon(delta / repetitions.mean)
    ratio = (1 - repetitions.gamma) / repetitions.gamma
    low, high = math.log(delta / repetitions.mean), -1e-9
    best = math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        bound, floor = epsilon(math.exp(middle)), math.log1p(math.exp(middle) * ratio)
        if bound is None:
            return None
        low, high = (middle, high) if bound > floor else (low, middle)
        best = min(best, max(bound, floor))
    return None if once is None else once + (repetitions.shape + 1) * best
