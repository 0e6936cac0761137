"""ROC curves of membership scores, and their true-positive rates at low false-positive rates.

A mean over all thresholds hides the few members that are identified with certainty, so the
true-positive rate at a low false-positive rate is reported (Carlini et al. 2022, section III).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Roc:
    """A ROC curve: the rates at all k thresholds on the scores, from the strictest to the laxest.

    Both rates go from 0 to 1 and never decrease. Equal scores are one threshold.

    Attributes:
      fpr: false-positive rates, shape [k].
      tpr: true-positive rates, shape [k].
      members: number of members.
      nonmembers: number of non-members.
    """

    fpr: Reals
    tpr: Reals
    members: int
    nonmembers: int

    @property
    def auc(self) -> float:
        """Area under the curve: the probability that a member outscores a non-member.

        A tie counts as one half.

        >>> roc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False])).auc
        0.875
        """
        widths, heights = np.diff(self.fpr), (self.tpr[1:] + self.tpr[:-1]) / 2
        return float(widths @ heights)

    @property
    def advantage(self) -> float:
        """Largest TPR - FPR over all thresholds (Yeom et al. 2018, definition 4).

        The best threshold is chosen on the same trials, so the value is never below 0, even by
        chance.
        """
        return float((self.tpr - self.fpr).max())

    def tpr_at(self, fpr: float) -> float:
        """Returns the largest TPR of all thresholds with an FPR of at most `fpr`, not interpolated.

        >>> curve = roc(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
        >>> [curve.tpr_at(fpr) for fpr in (0.0, 0.49, 0.5)]
        [0.5, 0.5, 1.0]
        """
        return float(self.tpr[self.fpr <= fpr].max())

    def resolves(self, fpr: float) -> bool:
        """Whether there are at least 1 / `fpr` non-members; with fewer, `tpr_at(fpr)` is the TPR at
        FPR 0.
        """
        return self.nonmembers * fpr >= 1 - 1e-9


def roc(scores: Reals, member: NDArray[np.bool_]) -> Roc:
    """Returns the ROC curve of the scores.

    Args:
      scores: scores, high for members, shape [n].
      member: whether each score is that of a member, shape [n].

    Raises:
      ValueError: if there are no members or no non-members, or if a score is NaN.
    """
    members, nonmembers = int(member.sum()), int((~member).sum())
    if not members or not nonmembers or bool(np.isnan(scores).any()):
        raise ValueError(
            f"{members} members and {nonmembers} non-members; expected some of both, and no NaN"
        )
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)  # ends of runs of ties
    hits = np.cumsum(member[order])[last]
    rates = [hits / members, (last + 1 - hits) / nonmembers]
    tpr, fpr = (np.concatenate([[0.0], rate]) for rate in rates)
    return Roc(fpr, tpr, members, nonmembers)


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the exact two-sided confidence interval of a rate: `hits` of independent `trials`.

    Source: Clopper & Pearson 1934.

    >>> [round(end, 4) for end in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return low, high
