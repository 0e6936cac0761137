"""Analytic inversion: computes inputs from the update of a linear first layer with bias.

No search and no model is needed. For a layer z = W x + b, the chain rule gives dW_i = db_i x for
every row i (a neuron). So one example's update contains the example itself, times a known number
(Phong et al. 2018, section 3). Ratios and projections are invariant under scaling. So the learning
rate, the sign of an update relative to a gradient, and clipping change nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


def recover_one(weight: Tensor, bias: Tensor) -> Tensor:
    """Returns the example `[k]` from which an update of the first layer was computed.

    x = sum_i db_i dW_i / sum_i db_i^2, the least squares solution of dW = db x^T. It is exact if dW
    has rank one, after any number of local steps on one example, and optimal if all rows of dW have
    equal noise. For several examples the result is a mixture. It is zero if nothing was updated.

    Args:
      weight: update of the layer's weights, shape [h, k].
      bias: update of the layer's bias, shape [h].

    >>> x, db = torch.tensor([3.0, -1.0]), torch.tensor([0.5, 0.0, -2.0])
    >>> recover_one(torch.outer(db, x), db)
    tensor([ 3., -1.])
    """
    square = bias.double().square().sum()
    if square == 0:
        return torch.zeros_like(weight[0])
    return (bias.double() @ weight.double() / square).to(weight)


def recover_candidates(weight: Tensor, bias: Tensor, count: int) -> Tensor:
    """Returns candidate examples `[count, k]`: x = dW_i / db_i, in order of descending |db_i|.

    Row i is exactly one example if that example alone activated neuron i, and a mixture otherwise
    (Fowl et al. 2022; Boenisch et al. 2023). A row that did not change gives zeros, as do
    candidates beyond the number of rows.

    Args:
      weight: update of the layer's weights, shape [h, k].
      bias: update of the layer's bias, shape [h].
      count: number of candidates.

    >>> weight = torch.tensor([[2.0, 4.0], [0.0, 0.0], [-9.0, 3.0]])
    >>> recover_candidates(weight, torch.tensor([2.0, 0.0, -3.0]), 2)
    tensor([[ 3., -1.],
            [ 1.,  2.]])
    """
    rows = bias.abs().argsort(descending=True, stable=True)[:count]
    below = bias[rows][:, None]
    ratios = torch.where(below == 0, 0.0, weight[rows] / torch.where(below == 0, 1.0, below))
    return torch.cat([ratios, ratios.new_zeros(count - len(ratios), ratios.shape[1])])
