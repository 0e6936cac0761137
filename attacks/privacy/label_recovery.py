"""Label recovery: infers labels from the last layer's bias update, under softmax cross-entropy.

The gradient of the mean loss of B examples with respect to the last bias is mean_k (p_k - e_(y_k)),
with p_k the predicted probabilities of example k, and e_y the unit vector of label y. So for one
example the gradient's entry is negative at the example's label and positive at all others; for
several, entries of absent labels are positive.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

_HARD, _SOFT = 1e3, 1e-3
"""Weights, in the fit, of the equation for `length`: `_HARD` if it is known, `_SOFT` if not."""


def recover_label(bias: Tensor) -> int:
    """Returns the label of one example: the index of the smallest entry of the bias gradient `bias`
    `[K]`.

    The gradient p_i - [i = y] of the last layer's bias is negative at the label alone. For an
    update (a descent), pass its negative: the sign is the same after any number of local steps on
    that example.

    Source: Zhao, Mopuri & Bilen 2020 (iDLG), on the bias: unlike the weights' rows, its signs do
    not depend on those of the layer's inputs.

    >>> recover_label(torch.tensor([0.2, -0.7, 0.5]))
    1
    """
    return int(bias.argmin())


def label_shares(bias: Tensor, probabilities: Tensor, length: float | None) -> Tensor:
    """Returns the fraction of a client's examples with each label, `[K]`, from the last bias
    gradient.

    Examples with label fractions pi have the gradient length (P^T - I) pi, with P the matrix
    `probabilities`. v = length pi >= 0 is fitted by non-negative least squares. If the predictions
    fit the labels on average (P^T pi = pi), the gradient is zero, so the length must be known. If
    clipping hides the length, pass None: the smallest length that fits is used, which is correct
    for clients without examples of at least one label.

    Args:
      bias: gradient of the last layer's bias, shape [K].
      probabilities: mean prediction on (public) examples of each label, shape [K, K].
      length: sum of the learning rates of all steps (1 for a gradient); None if unknown.

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
    """Returns `examples` labels, ascending, in the proportions `shares` (by largest remainders).

    >>> labels_in_proportion(torch.tensor([0.4, 0.0, 0.6]), 4)
    tensor([0, 0, 2, 2])
    """
    exact = shares.double() * examples
    counts = exact.floor().long()
    order = (exact - counts).argsort(descending=True, stable=True)
    counts[order[: examples - int(counts.sum())]] += 1
    return torch.repeat_interleave(torch.arange(len(shares)), counts)
