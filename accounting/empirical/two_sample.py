"""A test of a claimed epsilon by independent releases on two neighbouring populations.

Each release is mapped to a score. If the mechanism is (epsilon, delta)-DP, then for every set S of
scores P1(S) <= e^epsilon P0(S) + delta, whichever of the neighbours is called 1. S is chosen on one
half of the releases. On the other half the counts in S are binomial, and give

- a *lower bound* on epsilon, by bounds on both probabilities (Clopper & Pearson 1934). With a
  threshold chosen on the counted releases, up to a third of such bounds would exceed the truth.
- a *p-value* for a claim: the maximum likelihood of the counts under the claim, over that at the
  rates of the first half (universal inference: Wasserman, Ramdas & Balakrishnan 2020, theorem 3).
  By Markov's inequality the p-value is valid for any number of releases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, xlog1py, xlogy

from accounting.errors import Unaccountable

Numbers = NDArray[np.float64]
Claim = tuple[float, float]
"""A claimed (epsilon, delta)."""
_TAILS, _BINS, _STEPS = 50, 40, 80


@dataclass(frozen=True)
class Verdict:
    """The result of a test: a lower bound on epsilon at `delta` and `confidence`.

    Of the tested claims, `claim` is the one with the strongest evidence against it, and `p_value`
    is the p-value of this claim.
    `releases` is the number of counted releases, of both neighbours together.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    claim: Claim
    p_value: float
    releases: int


@dataclass(frozen=True)
class Counts:
    """Numbers of scores in each of s sets: `in0` of `n0` for one neighbour, `in1` of `n1`."""

    in0: Numbers
    n0: int
    in1: Numbers
    n1: int

    def of(self, index: int) -> Counts:
        """Returns the counts of the set at `index`."""
        return Counts(self.in0[[index]], self.n0, self.in1[[index]], self.n1)

    def rates(self) -> tuple[Numbers, Numbers]:
        """Returns smoothed fractions `[s]` of either neighbour's scores in each set, in (0, 1)."""
        return (self.in0 + 0.5) / (self.n0 + 1), (self.in1 + 0.5) / (self.n1 + 1)

    def log_likelihood(self, p0: Numbers, p1: Numbers) -> Numbers:
        """Returns the log likelihood `[s]` of the counts, for probabilities p0 and p1."""
        side0 = xlogy(self.in0, p0) + xlog1py(self.n0 - self.in0, -p0)
        side1 = xlogy(self.in1, p1) + xlog1py(self.n1 - self.in1, -p1)
        return np.asarray(side0 + side1)

    def under(self, claim: Claim) -> Numbers:
        """Returns each set's maximum log likelihood `[s]` subject to p1 <= e^epsilon p0 + delta.

        If the counts violate the constraint, the maximum is on the boundary, where the likelihood
        is concave in p0; golden-section search yields the maximum.
        """
        factor, delta = math.exp(min(claim[0], 300.0)), claim[1]

        def at(p0: Numbers) -> Numbers:
            return self.log_likelihood(p0, np.minimum(factor * p0 + delta, 1.0))

        low = np.zeros_like(self.in0, dtype=float)
        high = np.full_like(low, min(1.0, (1 - delta) / factor))
        golden = (math.sqrt(5) - 1) / 2
        for _ in range(_STEPS):
            left, right = high - golden * (high - low), low + golden * (high - low)
            up = at(left) < at(right)
            low, high = np.where(up, left, low), np.where(up, high, right)
        free0, free1 = self.in0 / self.n0, self.in1 / self.n1
        allowed = free1 <= factor * free0 + delta
        return np.where(allowed, self.log_likelihood(free0, free1), at((low + high) / 2))

    def epsilon_lower(self, delta: float, miss: float) -> Numbers:
        """Returns lower bounds on epsilon `[s]`, each valid with probability 1 - `miss`."""
        least = np.where(
            self.in1 > 0, betaincinv(np.maximum(self.in1, 1), self.n1 - self.in1 + 1, miss / 2), 0.0
        )
        outside = np.maximum(self.n0 - self.in0, 1)
        most = np.where(self.in0 < self.n0, 1 - betaincinv(outside, self.in0 + 1, miss / 2), 1.0)
        ratio = np.maximum(least - delta, 0.0) / most
        return np.log(np.maximum(ratio, 1.0))


def judge(
    scores0: Numbers, scores1: Numbers, delta: float, confidence: float, claims: Sequence[Claim]
) -> Verdict:
    """Returns the verdict on claims, by the scores of both neighbours' releases.

    One half of the scores chooses the sets, the other half is counted.

    Args:
      scores0: scores of one neighbour's releases, shape [n].
      scores1: scores of the other neighbour's releases, shape [n].
      delta: delta of the lower bound.
      confidence: confidence of the lower bound.
      claims: points (epsilon, delta) of one privacy profile, all of which hold if the claim is
        true.

    Raises:
      Unaccountable: if a side has fewer than 20 releases, or the sides have different numbers.
    """
    if len(scores0) != len(scores1) or len(scores0) < 20:
        raise Unaccountable(
            f"the neighbours have {len(scores0)} and {len(scores1)} releases; expected equally "
            "many of both, and at least 20"
        )
    half = len(scores0) // 2
    first, second = (scores0[:half], scores1[:half]), (scores0[half:], scores1[half:])
    sets, miss = Sets.chosen(*first), 1 - confidence
    # Bins were ordered by the same scores, so the bound of the best bin would be biased.
    widest = int(np.argmax(sets.counts(first, bins=False).epsilon_lower(delta, miss)))
    bound = sets.counts(second, bins=False).of(widest).epsilon_lower(delta, miss)
    tried, fresh = sets.counts(first), sets.counts(second)
    free = tried.log_likelihood(tried.in0 / tried.n0, tried.in1 / tried.n1)
    against = np.stack([free - tried.under(claim) for claim in claims])
    number, best = (int(n) for n in np.unravel_index(np.argmax(against), against.shape))
    expected, counted = tried.of(best).rates(), fresh.of(best)
    ratio = float((counted.under(claims[number]) - counted.log_likelihood(*expected))[0])
    return Verdict(
        float(bound[0]),
        delta,
        confidence,
        claims[number],
        math.exp(min(ratio, 0.0)),
        2 * (len(scores0) - half),
    )


@dataclass(frozen=True)
class Sets:
    """Sets of scores: both sides of `thresholds`; the first j bins in an order, and the rest.

    Bins between `edges` are ordered by how much more often they hold scores of one neighbour: if
    densities cross more than once, they are more powerful than any threshold.
    """

    thresholds: Numbers
    edges: Numbers
    order: NDArray[np.int64]

    @classmethod
    def chosen(cls, scores0: Numbers, scores1: Numbers) -> Sets:
        """Chooses sets by scores that `counts` does not receive; thresholds are finest in tails."""
        tails = np.geomspace(1 / (1 + len(scores0)), 0.5, _TAILS)
        at = np.concatenate([tails, 1 - tails])
        thresholds = np.unique(np.concatenate([np.quantile(scores0, at), np.quantile(scores1, at)]))
        both = np.concatenate([scores0, scores1])
        edges = np.unique(np.quantile(both, np.arange(1, _BINS) / _BINS))
        in0, in1 = (_binned(scores, edges) for scores in (scores0, scores1))
        return cls(thresholds, edges, np.argsort((in0 + 1) / (in1 + 1)))

    def counts(self, sides: tuple[Numbers, Numbers], bins: bool = True) -> Counts:
        """Counts the scores of both `sides` in every set; without `bins`, in those of thresholds.

        The result has two entries per set: in its first half `sides[0]` is neighbour 0, in its
        second half neighbour 1. Both sides must have the same number of scores.
        """
        counts = []
        for scores in sides:
            within = len(scores) - np.searchsorted(np.sort(scores), self.thresholds, side="right")
            if bins:
                first = np.cumsum(_binned(scores, self.edges)[self.order])
                within = np.concatenate([within, first])
            counts.append(np.concatenate([within, len(scores) - within]))
        in0, in1 = (np.asarray(side, dtype=float) for side in counts)
        many = len(sides[0])
        return Counts(np.concatenate([in0, in1]), many, np.concatenate([in1, in0]), many)


def _binned(scores: Numbers, edges: Numbers) -> NDArray[np.int64]:
    return np.bincount(np.searchsorted(edges, scores, side="right"), minlength=len(edges) + 1)
