"""Many models of a common kind as one batched computation, each with parameters of its own.

`torch.func.vmap` takes any module, at a price per call that is more than the arithmetic of a small
model, and its products come in an order that is slow on CPUs. A sequence of linear and elementwise
layers needs no tracing: it is a few batched products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Layers = tuple[tuple[str, nn.Module], ...]
_ELEMENTWISE = frozenset(
    {nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Softplus, nn.Identity}
)


def stackable_layers(module: nn.Module, trained: frozenset[str]) -> Layers | None:
    """The layers of `module` by name, in order; None where one cannot be stacked here.

    `stacked_forward` knows exact types only, without hooks, and with every parameter among those
    `trained`, by that name: what subclasses, parametrisations and shared or frozen parameters do is
    left to PyTorch.
    """
    layers = tuple(_leaf_layers(module, ""))
    known = all(_is_known(name, layer, trained) for name, layer in layers)
    return layers if layers and known else None


def stacked_forward(layers: Layers, leaves: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The outputs of c models, each on its own x `[c, B, *features]`; leaves are `[c, *shape]`."""
    for name, layer in layers:
        if isinstance(layer, nn.Linear):
            rows = x.flatten(1, -2)
            bias = leaves.get(f"{name}bias")
            out: Tensor = _Linear.apply(rows, leaves[f"{name}weight"], bias)  # type: ignore[no-untyped-call]
            x = out.view(*x.shape[:-1], out.shape[-1])
        else:
            x = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
    return x


def _leaf_layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential and _ordinary(module):
        for name, part in module._modules.items():  # `named_children` leaves out repeated ones
            yield from _leaf_layers(part, f"{prefix}{name}.") if part is not None else ()
    else:
        yield prefix, module


def _is_known(name: str, layer: nn.Module, trained: frozenset[str]) -> bool:
    if not _ordinary(layer):
        return False
    if type(layer) is nn.Linear:
        keys = ("weight",) if layer.bias is None else ("weight", "bias")
        return all(f"{name}{key}" in trained for key in keys)
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return type(layer) in _ELEMENTWISE and not getattr(layer, "inplace", False)


def _ordinary(layer: nn.Module) -> bool:
    """Whether calling it is calling the method `forward` of its class, and nothing else."""
    attributes = vars(layer)
    hooked = any(value for key, value in attributes.items() if "hooks" in key)
    return "forward" not in attributes and not hooked


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
