"""Many models of a common kind as one batched computation, each with parameters of its own.

`torch.func.vmap` takes any module, at a price per call that is more than the arithmetic of a small
model, and its products come in an order that is slow on CPUs. A sequence of linear and elementwise
layers needs no tracing: it is a few batched products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from privfed.models.sequence import ELEMENTWISE, Layers, leaf_layers, operands, ordinary


def stackable_layers(module: nn.Module, trained: frozenset[str]) -> Layers | None:
    """The layers of `module` by name, in order; None where one cannot be stacked here.

    `stacked_forward` knows exact types only, without hooks, and with every parameter among those
    `trained`, by that name: what subclasses, parametrisations and shared or frozen parameters do is
    left to PyTorch.
    """
    layers = tuple(leaf_layers(module, ""))
    known = all(_is_known(name, layer, trained) for name, layer in layers)
    return layers if layers and known else None


def stacked_forward(
    layers: Layers, leaves: Mapping[str, Tensor], x: Tensor, mixed: int = 0
) -> Tensor:
    """The outputs of c models, each on its own x `[c, B, *features]`; leaves are `[c, *shape]`.

    In mixed precision `mixed` is the size of a full batch, in full precision 0.
    """
    for name, layer in layers:
        if isinstance(layer, nn.Linear):
            rows = x.flatten(1, -2)
            weight, bias = leaves[f"{name}weight"], leaves.get(f"{name}bias")
            multiplied = operands(rows, weight, bias, math.prod(x.shape[2:-1]), mixed)
            out: Tensor = _Linear.apply(*multiplied)  # type: ignore[no-untyped-call]
            x = out.view(*x.shape[:-1], out.shape[-1])
        else:
            x = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
    return x


def _is_known(name: str, layer: nn.Module, trained: frozenset[str]) -> bool:
    if not ordinary(layer):
        return False
    if type(layer) is nn.Linear:
        keys = ("weight",) if layer.bias is None else ("weight", "bias")
        return all(f"{name}{key}" in trained for key in keys)
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return type(layer) in ELEMENTWISE and not getattr(layer, "inplace", False)


class _Linear(torch.autograd.Function):
    """The products x W^T + b of c layers: `[c, B, i]`, `[c, o, i]`, `[c, o]` to `[c, B, o]`.

    PyTorch's own gradient for W is the transposed product, which takes up to four times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        if bias is None:
            return torch.bmm(x, weight.transpose(1, 2))
        return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        return (
            torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None,
            torch.bmm(grad.transpose(1, 2), x),
            grad.sum(1) if ctx.biased else None,
        )
