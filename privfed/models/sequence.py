"""Computes a sequence of plain layers, for one model or for stacked models.

`torch.func.functional_call` accepts any module. If all layers are of known types, the same values
are computed faster:

- *a ReLU before a max-pooling is moved after it*: it then processes a quarter of the numbers.
  Outputs and gradients are the same to the bit, because ReLU is monotone and commutes with the
  maximum;
- *the gradient of a linear layer's weight is kept as two factors*, the layer's input and the
  gradient of its output: a step adds their product to the weight in one pass.

In mixed precision, convolutions are computed in bfloat16, and linear layers if they have enough
rows: with few rows, converting the weight takes longer than the product. Normalisations are
computed in float32. Rows are counted for a full batch, whose size is public, not for the current
batch, whose padded size depends on the other clients.

Stacked models, each with its own parameters, are one batched computation. `torch.func.vmap` accepts
any module, but its cost per call exceeds the arithmetic of a small model, and the order of its
products is slow on CPUs. A sequence of linear and elementwise layers is computed by a few batched
products instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Layers = tuple[tuple[str, nn.Module], ...]
"""Layers in order, each with the prefix of its parameters' names."""
ELEMENTWISE = frozenset(
    {nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Softplus, nn.Identity}
)
FEWEST_ROWS = 32
"""Smallest number of rows for which a linear layer is faster in bfloat16, as measured."""
_PARAMETRISED = (nn.Linear, nn.Conv2d, nn.GroupNorm)
_OTHERS = ELEMENTWISE | {nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Dropout}


@dataclass(frozen=True)
class Factor:
    """A linear layer's input `[..., i]` and output `[..., o]`, for the gradient of its weight."""

    input: Tensor
    output: Tensor


def sequence_of(module: nn.Module, trained: frozenset[str]) -> Layers | None:
    """Returns the layers of `module`, reordered for speed; None if a layer is not supported.

    A layer is supported if it is of a known type (not of a subclass), and has no hooks and no rare
    options such as `inplace`. All its parameters must be in `trained`, the names of trained ones.
    """
    layers = tuple(leaf_layers(module, ""))
    known = all(_is_known(name, layer, trained) for name, layer in layers)
    return _pooled_first(layers) if layers and known else None


def sequence_forward(
    layers: Layers,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    mixed: int = 0,
    factors: dict[str, Factor] | None = None,
) -> Tensor:
    """Returns the outputs `[B, ...]` of a sequence of layers.

    Args:
      layers: the layers in order.
      parameters: parameters by name.
      x: examples, shape [B, *features].
      mixed: the size of a full batch in mixed precision; 0 in full precision.
      factors: if given, it receives the `Factor` of each linear layer computed in float32, by the
        weight's name; autograd then computes no gradient for these weights.
    """
    for prefix, layer in layers:
        weight, bias = (parameters.get(f"{prefix}{key}") for key in ("weight", "bias"))
        if isinstance(layer, nn.Conv2d) and weight is not None:
            x, weight, bias = _rounded(x, weight, bias) if mixed else (x, weight, bias)
            x = nn.functional.conv2d(
                x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups
            )
        elif isinstance(layer, nn.Linear) and weight is not None:
            x, weight, bias = operands(x, weight, bias, math.prod(x.shape[1:-1]), mixed)
            if factors is None or weight.dtype != torch.float32:
                x = nn.functional.linear(x, weight, bias)
            else:
                factors[f"{prefix}weight"] = factor = _factor(x, weight, bias)
                x = factor.output
        elif isinstance(layer, nn.GroupNorm):
            x = x if x.device.type == "cpu" else x.float()  # where it takes two types at once
            x = nn.functional.group_norm(x, layer.num_groups, weight, bias, layer.eps)
        else:
            x = layer(x)
    return x


def operands(
    x: Tensor, weight: Tensor, bias: Tensor | None, positions: int, mixed: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the operands of a linear layer, in bfloat16 if a full batch has enough rows.

    Args:
      x: input of the layer.
      weight: weight of the layer.
      bias: bias of the layer, if any.
      positions: number of rows per example.
      mixed: the size of a full batch in mixed precision, with enough rows if mixed * positions is
        at least `FEWEST_ROWS`; 0 in full precision.
    """
    if not mixed:
        return x, weight, bias
    wide = mixed * positions >= FEWEST_ROWS
    return _rounded(x, weight, bias) if wide else (x.float(), weight, bias)


def leaf_layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yields the layers of nested sequences, in order; `module` itself if it is not a sequence."""
    if type(module) is nn.Sequential and ordinary(module):
        for name, part in module._modules.items():  # `named_children` omits repeated ones
            yield from leaf_layers(part, f"{prefix}{name}.") if part is not None else ()
    else:
        yield prefix, module


def ordinary(layer: nn.Module) -> bool:
    """Whether a call of `layer` only calls its class's `forward`: there are no hooks."""
    attributes = vars(layer)
    hooked = any(value for key, value in attributes.items() if "hooks" in key)
    return "forward" not in attributes and not hooked


def _is_known(prefix: str, layer: nn.Module, trained: frozenset[str]) -> bool:
    if not ordinary(layer) or getattr(layer, "inplace", False):
        return False
    if type(layer) in _PARAMETRISED:
        plain = getattr(layer, "padding_mode", "zeros") == "zeros"
        held = [key for key, value in layer._parameters.items() if value is not None]
        return plain and all(f"{prefix}{key}" in trained for key in held)
    return type(layer) in _OTHERS and not getattr(layer, "return_indices", False)


def _pooled_first(layers: Layers) -> Layers:
    """Returns the same layers, with each ReLU after the max-pooling that follows it."""
    order = list(layers)
    for place, (former, latter) in enumerate(pairwise(layers)):
        if type(former[1]) is nn.ReLU and type(latter[1]) is nn.MaxPool2d:
            order[place], order[place + 1] = latter, former
    return tuple(order)


def _rounded(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16()


def _factor(x: Tensor, weight: Tensor, bias: Tensor | None) -> Factor:
    output = nn.functional.linear(x, weight.detach(), bias)
    return Factor(x.detach(), output if output.requires_grad else output.requires_grad_())


def stackable_layers(module: nn.Module, trained: frozenset[str]) -> Layers | None:
    """Returns the layers of `module` in order; None if `stacked_forward` does not support one.

    A layer is supported if it is of a known type (not of a subclass), and has no hooks and no rare
    options such as `inplace`. All its parameters must be in `trained`, the names of trained ones.
    """
    layers = tuple(leaf_layers(module, ""))
    known = all(_is_stackable(name, layer, trained) for name, layer in layers)
    return layers if layers and known else None


def stacked_forward(
    layers: Layers, leaves: Mapping[str, Tensor], x: Tensor, mixed: int = 0
) -> Tensor:
    """Returns the outputs `[c, B, ...]` of c models, each on its own examples.

    Args:
      layers: the layers in order.
      leaves: parameters by name, shape [c, *shape].
      x: examples of each model, shape [c, B, *features].
      mixed: the size of a full batch in mixed precision; 0 in full precision.
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


def _is_stackable(name: str, layer: nn.Module, trained: frozenset[str]) -> bool:
    if not ordinary(layer):
        return False
    if type(layer) is nn.Linear:
        keys = ("weight",) if layer.bias is None else ("weight", "bias")
        return all(f"{name}{key}" in trained for key in keys)
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return type(layer) in ELEMENTWISE and not getattr(layer, "inplace", False)


class _Linear(torch.autograd.Function):
    """c linear layers: x `[c, B, i]`, W `[c, o, i]` and b `[c, o]` to x W^T + b `[c, B, o]`.

    PyTorch computes the gradient of W as a transposed product, which takes up to four times as long
    as here.
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
