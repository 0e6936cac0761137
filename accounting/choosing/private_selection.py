"""What the best of a random number of runs tells: bounds from those of a single run.

A mechanism Q is run K times, each time afresh, and the best of its answers, by an order that was
fixed before, is the only thing that is released: A. K follows a `Repetitions` law with
E[x^K] = φ(x), and nobody learns it. Q may draw at random what it does, as one of several learning
rates, as long as every choice has the same bounds.

*Ties.* Give each answer an independent uniform number, which decides between equals. Answers are
then in a strict order, and which of several equal ones is released follows the same law as by their
place in line, since answers are exchangeable.

*The density of A.* With q(y) the chance that Q answers worse than y, A has the density
φ'(q(y)) with respect to Q, φ'(x) = E[K x^(K-1)]. For the truncated negative binomial law
φ'(x) = E[K] γ^(η+1) (1 - (1 - γ) x)^-(η+1), between 0 and E[K].
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
    """The Renyi divergences of A at `orders` `[n]`, all above 1, of a run's, `once` `[n]`.

    Papernot & Steinke 2022, Theorem 2: for all orders λ > 1 and λ' >= 1, with the divergences ε
    and ε' of Q there, that of A at λ is at most

        ε + (1 + η) (1 - 1/λ') ε' + (1 + η) log(1/γ) / λ' + log E[K] / (λ - 1).

    A bound at a higher order holds at a lower one too.
    """
    eta, log_gamma = repetitions.shape, math.log(repetitions.gamma)
    price = (1 + eta) * np.min((1 - 1 / orders) * once - log_gamma / orders)
    bounds = once + price + math.log(repetitions.mean) / (orders - 1)
    return np.asarray(np.minimum.accumulate(bounds[::-1])[::-1])


def selected_epsilon(
    epsilon: Callable[[float], float | None], repetitions: Repetitions, delta: float
) -> float | None:
    """A bound on A's epsilon at `delta`, of a run's `epsilon(delta)`; None where it has none.

    For every e' with δ_Q(e') (1 - γ) <= γ (exp(e') - 1), and every e,

        δ_A(e + (η + 1) e') <= E[K] δ_Q(e),

    where δ_Q and δ_A bound the hockey-stick divergences in both directions. (The same condition and
    bound as Koskela, Redberg & Wang 2024, *Privacy profiles for private selection*.)

    *Proof.* Let q, q' be the chances above on two neighbours. By the definition of δ_Q,
    1 - q' <= exp(e') (1 - q) + δ_Q(e'), so that

        1 - (1 - γ) q' = γ + (1 - γ)(1 - q')
                      <= exp(e') (γ + (1 - γ)(1 - q)) + (1 - γ) δ_Q(e') - γ (exp(e') - 1),

    of which the last two terms are together not above 0. Hence, at every y,
    φ'(q) <= exp((η + 1) e') φ'(q'). With c = e + (η + 1) e',

        ∫ [Q φ'(q) - exp(c) Q' φ'(q')]_+  <=  ∫ φ'(q) [Q - exp(e) Q']_+  <=  E[K] δ_Q(e),

    since φ' is at most φ'(1) = E[K]. The other direction is the same with both exchanged. ∎

    Any e' that meets the condition will do, so that how well it is searched for costs tightness
    only: each δ' gives one, the larger of `epsilon(δ')` and log(1 + δ' (1 - γ) / γ).
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
