"""Which of many p-values are discoveries, where few of these may be false."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]


def benjamini_hochberg(p: Reals, level: float) -> Mask:
    """The discoveries `[n]` among p-values `[n]`: all up to the largest p_(k) <= level k / n.

    Of these, at most `level` are false in expectation where p-values are independent, or positively
    dependent on each true null (Benjamini & Hochberg 1995; Benjamini & Yekutieli 2001, theorem
    1.2).

    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.9, 0.06]), 0.1).tolist()
    [True, True, False, True]
    """
    ordered = np.sort(p)
    below = np.flatnonzero(ordered <= level * np.arange(1, len(p) + 1) / max(len(p), 1))
    return p <= ordered[below[-1]] if len(below) else np.zeros(len(p), dtype=bool)


def benjamini_yekutieli(p: Reals, level: float) -> Mask:
    """The same however p-values hang together: at level / (1 + 1/2 + ... + 1/n).

    Source: Benjamini & Yekutieli 2001, theorem 1.3.

    >>> benjamini_yekutieli(np.array([0.01, 0.04, 0.9, 0.06]), 0.1).tolist()
    [True, False, False, False]
    """
    return benjamini_hochberg(p, level / float((1 / np.arange(1, len(p) + 1)).sum() or 1.0))
