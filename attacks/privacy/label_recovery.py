"""Labels read off the update of the last layer's bias, under softmax cross-entropy.

The gradient of the mean loss of B examples by the last bias is mean_k (p_k - e_(y_k)), with p_k the
predicted probabilities: negative where a label is, positive where none is.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

_HARD, _SOFT = 1e3, 1e-3
"""How heavily a known, and how lightly an unknown, length of the way weighs in the fit."""


def recover_label(bias: Tensor) -> int:
    """The label of one example, from the last layer's bias gradient `[K]`: where it is least.

    p_i - [i = y] is negative at the label alone. Of an update (a descent) pass its negative: its
    sign holds over any number of local steps on that example.

    Source: Zhao, Mopuri & Bilen 2020 (iDLG), on the bias: unlike the weights' rows, its signs do
    not depend on those of the layer's inputs.

    >>> recover_label(torch.tensor([0.2, -0.7, 0.5]))
    1
    """
    return int(bias.argmin())


def label_shares(bias: Tensor, probabilities: Tensor, length: float | None) -> Tensor:
    """Label shares `[K]`, at least 0 and of sum 1, from the last layer's bias gradient `[K]`.

    Row j of `probabilities` `[K, K]` is the mean prediction on examples of label j (from public
    ones). Examples with shares pi add up to gradient = length (P^T - I) pi, where `length` is the
    sum of the learning rates of all steps (1 for a gradient). v = length pi >= 0 is fitted by
    non-negative least squares. Predictions that fit a mixture of labels leave no trace (P^T pi =
    pi), so that the length has to be known; None, where a clip has hidden it, takes the shortest
    that fits, which is right for clients who lack a label.

    Source: as Wainakh et al. 2022 (LLG) and Geng et al. 2021 count labels in gradients of the last
    layer, with the predictions on each label instead of one prediction for all.

    >>> uniform = torch.full((3, 3), 1 / 3)
    >>> label_shares(torch.tensor([1 / 3 - 0.75, 1 / 3 - 0.25, 1 / 3]), uniform, 1.0)
    tensor([0.7500, 0.2500, 0.0000])
    >>> label_shares(0.1 * torch.tensor([1 / 3 - 0.75, 1 / 3 - 0.25, 1 / 3]), uniform, None)
    tensor([0.7500, 0.2500, 0.0000])
    """
    gradient = bias.double().cpu().numpy()
    scale = float(np.abs(gradient).max())
    matrix = probabilities.double().cpu().numpy().T - np.eye(len(gradient))
    known = length is not None
    target = length if length is not None else 0.0
    unit = target if known and target > 0 else max(scale, 1e-30)
    weight = _HARD if known else _SOFT
    rows = np.vstack([matrix, weight * np.ones(len(gradient))])
    fitted, _ = nnls(rows, np.append(gradient / unit, weight * target / unit))
    total = fitted.sum()
    shares = fitted / total if total > 0 else np.full(len(fitted), 1 / len(fitted))
    return torch.from_numpy(shares).float()


def labels_in_proportion(shares: Tensor, examples: int) -> Tensor:
    """Labels `[examples]`, ascending, in the proportions `shares` `[K]` (largest remainders).

    >>> labels_in_proportion(torch.tensor([0.4, 0.0, 0.6]), 4)
    tensor([0, 0, 2, 2])
    """
    exact = shares.double() * examples
    counts = exact.floor().long()
    order = (exact - counts).argsort(descending=True, stable=True)
    counts[order[: examples - int(counts.sum())]] += 1
    return torch.repeat_interleave(torch.arange(len(shares)), counts)
