"""How well scores tell members from non-members: the ROC, and what it says at few false positives.

A mean over all thresholds hides the few members who are exposed for certain, so what counts is the
true-positive rate at a low false-positive rate (Carlini et al. 2022, section III).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Roc:
    """What every threshold gives, from "nobody" to "everybody": rates `[k]`, both rising.

    A threshold takes all with its score or none of them, so that ties are one step.
    """

    fpr: Reals
    tpr: Reals
    members: int
    nonmembers: int

    @property
    def auc(self) -> float:
        """The area under it: how often a member outscores a non-member, a tie counting half.

        >>> roc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False])).auc
        0.875
        """
        widths, heights = np.diff(self.fpr), (self.tpr[1:] + self.tpr[:-1]) / 2
        return float(widths @ heights)

    @property
    def advantage(self) -> float:
        """The largest of all thresholds' of TPR - FPR (Yeom et al. 2018, definition 4).

        The best threshold is chosen on the same trials: it is never below 0, even of mere chance.
        """
        return float((self.tpr - self.fpr).max())

    def tpr_at(self, fpr: float) -> float:
        """The largest TPR of a threshold whose FPR is at most `fpr`; nothing is interpolated.

        >>> curve = roc(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
        >>> [curve.tpr_at(fpr) for fpr in (0.0, 0.49, 0.5)]
        [0.5, 0.5, 1.0]
        """
        return float(self.tpr[self.fpr <= fpr].max())

    def resolves(self, fpr: float) -> bool:
        """Whether one non-member weighs at most `fpr`: else TPR at `fpr` is that at no error."""
        return self.nonmembers * fpr >= 1 - 1e-9


def roc(scores: Reals, member: NDArray[np.bool_]) -> Roc:
    """The curve over scores `[n]`, high for members, where `member` `[n]` is the truth.

    Raises `ValueError` where one side is empty or a score is NaN.
    """
    members, nonmembers = int(member.sum()), int((~member).sum())
    if not members or not nonmembers or bool(np.isnan(scores).any()):
        raise ValueError(
            f"{members} members and {nonmembers} non-members; expected both, and no NaN"
        )
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)  # of each run of ties
    hits = np.cumsum(member[order])[last]
    rates = [hits / members, (last + 1 - hits) / nonmembers]
    tpr, fpr = (np.concatenate([[0.0], rate]) for rate in rates)
    return Roc(fpr, tpr, members, nonmembers)


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a rate seen as `hits` of independent `trials`.

    Source: Clopper & Pearson 1934.

    >>> [round(end, 4) for end in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return low, high
