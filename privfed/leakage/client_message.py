"""The update that a client sends, as a differentiable function of its examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from privfed.models.network import Network


def update_function(
    network: Network, params: Tensor, lr: float, steps: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """The function (x `[B, *features]`, y `[B]`) -> w_S - w_0 `[d]`, with w_0 = `params` `[d]`.

    w_s = w_(s-1) - lr * gradient of the mean loss on all of x: `steps` full-batch steps of
    plain local SGD, those of `LocalTrainer` with as many epochs and batches that hold everything.
    It is differentiable in x, through all steps.
    """
    start = params.detach()

    def update(x: Tensor, y: Tensor) -> Tensor:
        w = start.clone().requires_grad_()
        for _ in range(steps):
            loss = network.losses(w, x, y).mean()
            (grad,) = torch.autograd.grad(loss, w, create_graph=True)
            w = w - lr * grad
        return w - start

    return update
