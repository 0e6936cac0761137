"""Membership inference: whether an example, or a user, was in a model's training data.

Scores are high for members. A *statistic* is one number for each target (an example, a user) under
one model: `confidence` of an example, its mean over a user's examples for a user. LiRA (the
likelihood-ratio attack) compares it with the same statistic under shadow models, which the attacker
trained with a random half of the targets each.

A user's statistic is the mean over examples, not a sum of the examples' likelihood ratios. All
examples of a user are members or none is, so their statistics are correlated. A product of
densities would count one piece of evidence many times, most of all for users with many examples.
The mean is one number with one Gaussian, which a few shadow models suffice to fit. It calibrates as
the user-inference attack of Kandpal et al. 2024 does (section 3: the likelihood ratio, averaged
over the user's samples).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]
OWN_VARIANCE = 64
"""Smallest number of shadow models with which each target has a variance of its own (Carlini et al.
2022, VI-C)."""
_LEAST = 2.0**-53
"""Smaller losses are replaced by this value."""


@dataclass(frozen=True)
class Shadows:
    """Statistics of t targets under s shadow models.

    Membership must be drawn by independent Bernoulli trials: if exactly half of the models were
    trained on each target, the other models would reveal the membership in the attacked one.

    Attributes:
      statistics: statistic of each target under each model, shape [s, t].
      inside: whether the model was trained on the target, shape [s, t].
    """

    statistics: Reals
    inside: Flags

    def __len__(self) -> int:
        return len(self.statistics)

    def without(self, model: int) -> Shadows:
        """Returns all shadow models except the one with the index `model`, which is to be
        attacked.
        """
        others = np.arange(len(self)) != model
        return Shadows(self.statistics[others], self.inside[others])


def confidence(losses: Reals) -> Reals:
    """Returns φ = log(p / (1 - p)), where p = e^-loss is the probability of the true label.

    φ = -(loss + log(1 - e^-loss)) is nearly Gaussian, whereas p concentrates at 1. Source:
    Carlini et al. 2022, section V-A and equation 4.

    >>> confidence(np.array([0.0, np.log(4), 800.0])).round(3)
    array([  36.737,   -1.099, -800.   ])
    """
    losses = np.maximum(losses, _LEAST)
    logit: Reals = -(losses + np.log(-np.expm1(-losses)))
    return logit


def means_of(values: Reals, offsets: NDArray[np.int64]) -> Reals:
    """Returns the mean of each user's values; user k has `values[offsets[k]:offsets[k + 1]]`.

    >>> means_of(np.array([1.0, 3.0, 5.0]), np.array([0, 2, 3]))
    array([2., 5.])
    """
    return np.asarray(np.add.reduceat(values, offsets[:-1]) / np.diff(offsets))


def lira(target: Reals, shadows: Shadows) -> Reals:
    """Returns the log-likelihood ratio of member to non-member for each of t targets, `[t]`.

    `target` `[t]` are the statistics φ under the attacked model. The ratio is log N(φ; μ_in, σ_in²)
    - log N(φ; μ_out, σ_out²), with each target's means fitted over the shadow models trained with
    it, or without it. If all shadow models were trained with a target, or all without it, its score
    is 0: no evidence. Source: Carlini et al. 2022, algorithm 1 (online).
    """
    means, variances = zip(*(_gaussian(shadows, side) for side in (True, False)), strict=True)
    logs = [
        -np.log(v) / 2 - (target - m) ** 2 / (2 * v) for m, v in zip(means, variances, strict=True)
    ]
    return np.asarray(np.nan_to_num(logs[0] - logs[1]))


def lira_offline(target: Reals, shadows: Shadows) -> Reals:
    """Returns the z-score of each target's statistic under models trained without the target,
    `[t]`.

    `target` `[t]` are the statistics φ under the attacked model. The score is (φ - μ_out) / σ_out,
    which orders targets as the one-sided test 1 - Pr[N(μ_out, σ_out²) > φ] does. A target that
    every shadow model was trained on scores 0. Source: Carlini et al. 2022, section VI-A (offline).
    """
    mean, variance = _gaussian(shadows, False)
    return np.asarray(np.nan_to_num((target - mean) / np.sqrt(variance)))


def _gaussian(shadows: Shadows, inside: bool) -> tuple[Reals, Reals]:
    """Returns each target's mean `[t]` and variance `[t]` over models trained with it (`inside`).

    If `inside` is False, over models trained without it. The mean is NaN if there are none. With
    fewer than `OWN_VARIANCE` shadow models in all, every target has the variance pooled over the
    residuals of all targets; otherwise only targets with at most two such models.
    """
    on_side = shadows.inside == inside
    count = on_side.sum(0)
    total = np.where(on_side, shadows.statistics, 0.0).sum(0)
    mean = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    squares = np.where(on_side, (shadows.statistics - mean) ** 2, 0.0).sum(0)
    free = np.maximum(count - 1, 0)
    pooled = squares.sum() / max(int(free.sum()), 1)
    if len(shadows) < OWN_VARIANCE:
        variance = np.full(len(count), pooled)
    else:
        variance = np.divide(squares, free, out=np.full(len(count), pooled), where=free > 1)
    return mean, np.maximum(variance, 1e-12)


Rule = Callable[[Reals, Shadows], Reals]
RULES: dict[str, Rule] = {"lira": lira, "lira_offline": lira_offline}
"""Attacks that use shadow models, by name."""


def leave_one_out(rule: Rule, runs: Shadows) -> Reals:
    """Returns scores `[s, t]`: each model in turn is attacked with all others as shadow models.

    `rule` is one of `RULES`. This gives s times as many trials from the same models (Carlini et al.
    2022, section VI).
    """
    return np.stack([rule(runs.statistics[n], runs.without(n)) for n in range(len(runs))])
