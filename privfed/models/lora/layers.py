"""Layers that compute with W + s B A, in the place of W, under the names that they had before.

The factors lie in the layer beside its weight: `weight_lora_A` `[g, r, k]`, `weight_lora_B`
`[g, n / g, r]`, and the number s, `weight_lora_scale`. A weight of n rows has g blocks of them,
each with factors of its own: the query, key and value in an attention's packed projection, the
groups of a convolution, else one. k is what is left of the weight's shape, so that s B A
`[g, n / g, k]` is the weight's change.

Whoever reads `layer.weight` reads the sum, as attention does. Where a plain linear layer or
convolution is called, it adds B (A x) to what W gives: no matrix of the weight's size is formed,
and of c stacked models W is multiplied once for all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from privfed.models.start import factors

_NO_WEIGHTS: tuple[str, ...] = ()


def adaptable(layer: nn.Module) -> dict[str, int]:
    """The weights of `layer` that can be adapted, by name, and how many blocks each has."""
    if isinstance(layer, nn.MultiheadAttention):
        packed = {"in_proj_weight": 3}
        apart = {"q_proj_weight": 1, "k_proj_weight": 1, "v_proj_weight": 1}
        return packed if layer.in_proj_weight is not None else apart
    if isinstance(layer, nn.Conv2d):
        return {"weight": layer.groups}
    return {"weight": 1} if isinstance(layer, nn.Linear) else {}


def adapted_weights(layer: nn.Module) -> tuple[str, ...]:
    """The names of the weights of `layer` that are adapted."""
    return getattr(type(layer), "_lora_weights", _NO_WEIGHTS)


def adapt(layer: nn.Module, weight: str, a: Tensor, b: Tensor, scale: float) -> None:
    """Make `layer` compute with W + `scale` B A in the place of its parameter W, called `weight`.

    `a` is `[g, r, k]` and `b` `[g, n / g, r]`.
    """
    names = factors(weight)
    layer.register_parameter(names.a, nn.Parameter(a))
    layer.register_parameter(names.b, nn.Parameter(b))
    layer.register_parameter(names.scale, nn.Parameter(torch.tensor(scale), requires_grad=False))
    weights = (*adapted_weights(layer), weight)
    layer.__class__ = _adapting(_plain(type(layer)), weights)


def merge(layer: nn.Module) -> None:
    """Make `layer` what it was before `adapt`, with the change in its weights, which are frozen."""
    for weight in adapted_weights(layer):
        changed = getattr(layer, weight).detach().clone()
        for factor in factors(weight):
            del layer._parameters[factor]
        layer._parameters[weight] = nn.Parameter(changed, requires_grad=False)
    layer.__class__ = _plain(type(layer))


def change(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """The change s B A `[n, k]` of a weight."""
    return scale * (b @ a).flatten(0, 1)


def _plain(kind: type[nn.Module]) -> type[nn.Module]:
    """The class that `kind` adapts, or itself."""
    return kind.__bases__[0] if "_lora_weights" in vars(kind) else kind


def _adapting(kind: type[nn.Module], weights: tuple[str, ...]) -> type[nn.Module]:
    """The subclass of `kind` whose `weights` are adapted."""
    members: dict[str, Any] = {weight: _whole(weight) for weight in weights}
    if kind in _CALLED:
        members["forward"] = _CALLED[kind]
    return type(f"Adapted{kind.__name__}", (kind,), {**members, "_lora_weights": weights})


def _whole(weight: str) -> property:
    """The weight with its change, for whoever reads it."""

    def read(layer: nn.Module) -> Tensor:
        base = _parameter(layer, weight)
        return base + change(*_factors(layer, weight)).view_as(base)

    return property(read)


def _parameter(layer: nn.Module, name: str) -> Tensor:
    """What `layer` holds under this name, even where a property hides it."""
    parameter = layer._parameters[name]
    assert parameter is not None
    return parameter


def _factors(layer: nn.Module, weight: str) -> tuple[Tensor, Tensor, Tensor]:
    a, b, scale = (_parameter(layer, name) for name in factors(weight))
    return a, b, scale


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """W x + bias + s B (A x)."""
    a, b, scale = _factors(layer, "weight")
    out = functional.linear(x, _parameter(layer, "weight"), layer.bias)
    return out + scale * functional.linear(functional.linear(x, a[0]), b[0])


def _convolution(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The same of a convolution: A is one to `r` channels for each group, B mixes these."""
    base, (a, b, scale) = _parameter(layer, "weight"), _factors(layer, "weight")
    inner = layer._conv_forward(x, a.reshape(-1, *base.shape[1:]), None)
    change = functional.conv2d(inner, b.reshape(len(base), -1, 1, 1), groups=layer.groups)
    out: Tensor = layer._conv_forward(x, base, layer.bias) + scale * change
    return out


_CALLED: dict[type[nn.Module], Any] = {nn.Linear: _linear, nn.Conv2d: _convolution}
"""What the plain classes compute where they are called; a subclass's own code reads the weight."""
