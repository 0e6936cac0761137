"""Low-rank adapters (LoRA): adapts layers of a model, selects trained parameters, merges adapters.

An adapted layer replaces W by W + s B A, under its original parameter names.

The factors are stored in the layer next to its weight: `weight_lora_A` `[g, r, k]`, `weight_lora_B`
`[g, n / g, r]`, and the scalar s, `weight_lora_scale`. A weight of n rows has g blocks, each with
its own factors: three (query, key and value) in an attention's packed projection, the groups of a
convolution, otherwise one. With k the product of the weight's other dimensions, the weight changes
by s B A `[g, n / g, k]`.

Code that reads `layer.weight`, such as attention, reads W + s B A. A call of a linear layer or
convolution adds s B (A x) to the output of W: no matrix of the weight's size is formed, and for c
stacked models the product with W is computed once for all.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.models.peft_format import is_conv1d
from privfed.models.pretrained import is_named
from privfed.models.start import Lora, factors, is_factor

_NO_WEIGHTS: tuple[str, ...] = ()


def adaptable(layer: nn.Module) -> dict[str, int]:
    """Returns the weights of `layer` that can be adapted: name -> number of blocks of rows, g.

    g is 3 for the joint projection of an attention (query, key, value), the number of groups of a
    convolution, and 1 for other weights.
    """
    if isinstance(layer, nn.MultiheadAttention):
        packed = {"in_proj_weight": 3}
        apart = {"q_proj_weight": 1, "k_proj_weight": 1, "v_proj_weight": 1}
        return packed if layer.in_proj_weight is not None else apart
    if isinstance(layer, nn.Conv2d):
        return {"weight": layer.groups}
    return {"weight": 1} if isinstance(layer, nn.Linear) or is_conv1d(layer) else {}


def adapted_weights(layer: nn.Module) -> tuple[str, ...]:
    """Returns the names of the weights of `layer` that have adapters."""
    return getattr(type(layer), "_lora_weights", _NO_WEIGHTS)


def adapt(layer: nn.Module, weight: str, a: Tensor, b: Tensor, scale: float) -> None:
    """Replaces the parameter W of `layer`, called `weight`, by W + `scale` B A.

    Args:
      layer: the layer, changed in place.
      weight: name of the weight W `[n, k]`, which has g blocks of rows.
      a: the factor A of rank r, shape [g, r, k].
      b: the factor B, shape [g, n / g, r].
      scale: the factor s of B A.
    """
    names = factors(weight)
    layer.register_parameter(names.a, nn.Parameter(a))
    layer.register_parameter(names.b, nn.Parameter(b))
    layer.register_parameter(names.scale, nn.Parameter(torch.tensor(scale), requires_grad=False))
    weights = (*adapted_weights(layer), weight)
    layer.__class__ = _adapting(_plain(type(layer)), weights)


def merge(layer: nn.Module) -> None:
    """Adds the change s B A to each adapted weight of `layer`, and removes the factors.

    The merged weights are frozen.
    """
    changed = {each: getattr(layer, each).detach().clone() for each in adapted_weights(layer)}
    unadapt(layer)
    for weight, value in changed.items():
        layer._parameters[weight] = nn.Parameter(value, requires_grad=False)


def unadapt(layer: nn.Module) -> None:
    """Removes the factors that `adapt` added to `layer`, whose original weights are then used."""
    for weight in adapted_weights(layer):
        for factor in factors(weight):
            del layer._parameters[factor]
    layer.__class__ = _plain(type(layer))


def change(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """Returns the change s B A `[n, k]` of a weight; `a` is `[g, r, k]`, `b` `[g, n / g, r]`."""
    return scale * (b @ a).flatten(0, 1)


def _plain(kind: type[nn.Module]) -> type[nn.Module]:
    """Returns the original class, if `kind` is the adapted form of one; otherwise `kind` itself."""
    return kind.__bases__[0] if "_lora_weights" in vars(kind) else kind


def _adapting(kind: type[nn.Module], weights: tuple[str, ...]) -> type[nn.Module]:
    """Returns the subclass of `kind` whose `weights` are adapted."""
    members: dict[str, Any] = {weight: _whole(weight) for weight in weights}
    if kind in _CALLED:
        members["forward"] = _CALLED[kind]
    return type(f"Adapted{kind.__name__}", (kind,), {**members, "_lora_weights": weights})


def _whole(weight: str) -> property:
    """Returns a property that computes the layer's `weight` including its change s B A."""

    def read(layer: nn.Module) -> Tensor:
        base = _parameter(layer, weight)
        return base + change(*_factors(layer, weight)).view_as(base)

    return property(read)


def _parameter(layer: nn.Module, name: str) -> Tensor:
    """Returns the parameter that `layer` stores as `name`, even if a property hides it."""
    parameter = layer._parameters[name]
    assert parameter is not None
    return parameter


def _factors(layer: nn.Module, weight: str) -> tuple[Tensor, Tensor, Tensor]:
    a, b, scale = (_parameter(layer, name) for name in factors(weight))
    return a, b, scale


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Returns W x + bias + s B (A x)."""
    a, b, scale = _factors(layer, "weight")
    out = functional.linear(x, _parameter(layer, "weight"), layer.bias)
    return out + scale * functional.linear(functional.linear(x, a[0]), b[0])


def _convolution(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Returns the convolution of x by W + s B A: B combines the r channels per group given by A."""
    base, (a, b, scale) = _parameter(layer, "weight"), _factors(layer, "weight")
    inner = layer._conv_forward(x, a.reshape(-1, *base.shape[1:]), None)
    change = functional.conv2d(inner, b.reshape(len(base), -1, 1, 1), groups=layer.groups)
    out: Tensor = layer._conv_forward(x, base, layer.bias) + scale * change
    return out


_CALLED: dict[type[nn.Module], Any] = {nn.Linear: _linear, nn.Conv2d: _convolution}
"""Forward functions of the plain classes; code of a subclass reads the weight."""


Place = tuple[str, nn.Module, str, int]
"""A module's name, the module, the name of its weight, and its number of blocks."""


def adapt_model(module: nn.Module, lora: Lora, keys: Keys) -> None:
    """Adds factors to `module`, and freezes all parameters except these and the `trained` ones.

    A is frozen, too, if `lora.freeze_a`. Its entries have variance 1 / k, so entries of A x are
    about as large as those of x. B is zero.

    Args:
      module: the model, changed in place.
      lora: the keys of [model.lora].
      keys: random stream, derived by the name of each weight.

    Raises:
      Refused: if a target cannot be adapted, is tied to another parameter or is also trained, a
        pattern names nothing, the rank is too large, or a parameter has the name of a factor.
    """
    _refuse_factors(module)
    places = _places(module, lora.targets)
    _refuse_shared(module, places)
    trained = _trained(module, lora.trained)
    _freeze(module, trained)
    for name, layer, weight, blocks in places:
        full = _joined(name, weight)
        if full in trained:
            raise Refused(
                f"model.lora.trained names {full!r}, but model.lora.targets names it, too; leave "
                "it out of one of the two"
            )
        shape = layer.get_parameter(weight).shape
        _refuse_rank(full, lora.rank, shape[0] // blocks, math.prod(shape[1:]))
        a, b = _drawn(shape, blocks, lora.rank, keys.derived(full.encode()))
        adapt(layer, weight, a, b, lora.scale)
        layer.get_parameter(factors(weight).a).requires_grad_(not lora.freeze_a)


def merge_model(module: nn.Module, trained: Collection[str]) -> tuple[str, ...]:
    """Merges all adapters of `module` into its weights; returns the names of trained parameters.

    `trained` has the names of trained parameters before merging; the result has no factors. A
    merged weight counts as trained if one of its factors is in `trained`.
    """
    weights: list[str] = []
    for name, layer in list(module.named_modules()):
        full = [_joined(name, weight) for weight in adapted_weights(layer)]
        weights += [each for each in full if {factors(each).a, factors(each).b} & {*trained}]
        merge(layer)
    return (*(name for name in trained if not is_factor(name)), *weights)


def refuse_unused(gradients: Mapping[str, Tensor]) -> None:
    """Raises `Refused` if a factor's gradient, computed at a nonzero B, is zero.

    The model's output then does not depend on the factor, which would be noised and sent in vain.
    """
    for name, gradient in gradients.items():
        if is_factor(name) and not bool(gradient.any()):
            raise Refused(
                f"model.lora.targets names {name!r}, but the model's output does not depend on "
                "that weight: it is unused, or the code reads it from another place; leave the "
                "module out"
            )


def _places(module: nn.Module, targets: Collection[str]) -> list[Place]:
    """Returns the adaptable weights of the modules that `targets` name, each weight once.

    Raises `Refused` if there are no targets, or a target names no such module.
    """
    places = list(_all_places(module))
    if not targets:
        _refuse_targets("no module is named", places)
    chosen: dict[tuple[int, str], Place] = {}
    for target in targets:
        named = [place for place in places if is_named(place[0], target)]
        if not named:
            _refuse_target(module, target, places)
        chosen |= {(id(layer), weight): (n, layer, weight, g) for n, layer, weight, g in named}
    return list(chosen.values())


def _all_places(module: nn.Module) -> Iterator[Place]:
    for name, layer in module.named_modules():
        for weight, blocks in adaptable(layer).items():
            if layer._parameters.get(weight) is not None:  # a computed weight is not a parameter
                yield name, layer, weight, blocks


def _refuse_target(module: nn.Module, target: str, places: list[Place]) -> None:
    named = [(name, part) for name, part in module.named_modules() if is_named(name, target)]
    kind = type(named[0][1]).__name__ if named else ""
    _refuse_targets(
        f"{named[0][0]!r} is a {kind}" if named else f"no module is called {target!r}", places
    )


def _refuse_targets(what: str, places: list[Place]) -> None:
    """Raises `Refused` with the reason `what`, and the names of the modules that can be adapted."""
    names = ", ".join(dict.fromkeys(repr(name) for name, *_ in itertools.islice(places, 20)))
    raise Refused(
        f"model.lora.targets: {what}; name linear layers, two-dimensional convolutions, "
        "attentions, or modules that contain these: use "
        f"{names or 'another model, since this one has none'}"
    )


def _refuse_factors(module: nn.Module) -> None:
    """Raises `Refused` if a parameter of the model already has the name of a factor."""
    for name, _ in module.named_parameters():
        if is_factor(name):
            raise Refused(
                f"model.lora is set, but the model already has a parameter {name!r}, which is the "
                "name of a factor; rename the parameter"
            )


def _refuse_shared(module: nn.Module, places: Iterable[Place]) -> None:
    """Raises `Refused` if one of the weights is tied to another parameter."""
    parts = list(module.modules())
    holders = Counter(id(p) for part in parts for p in part._parameters.values() if p is not None)
    for name, layer, weight, _ in places:
        if holders[id(layer._parameters[weight])] > 1:
            raise Refused(
                f"model.lora.targets names {_joined(name, weight)!r}, but that weight is tied to "
                "another parameter, and adapting one would untie both; leave this module out"
            )


def _refuse_rank(name: str, rank: int, rows: int, columns: int) -> None:
    if rank > min(rows, columns):
        raise Refused(
            f"model.lora.rank is {rank}, but {name!r} is {rows} by {columns}; lower the rank to at "
            f"most {min(rows, columns)}"
        )


def _drawn(shape: torch.Size, blocks: int, rank: int, keys: Keys) -> tuple[Tensor, Tensor]:
    """Returns a random A `[g, r, k]`, entries of variance 1 / k, and a zero B `[g, n / g, r]`."""
    columns = math.prod(shape[1:])
    normal = keys.normal(blocks * rank * columns).reshape(blocks, rank, columns)
    a = torch.from_numpy(normal / math.sqrt(columns)).float()
    return a, torch.zeros(blocks, shape[0] // blocks, rank)


def _trained(module: nn.Module, patterns: Iterable[str]) -> set[str]:
    """Returns the parameters that `patterns` name. Raises `Refused` if one names none."""
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    trained: set[str] = set()
    for pattern in patterns:
        named = {name for name in names if is_named(name, pattern)}
        if not named:
            raise Refused(
                f"model.lora.trained names {pattern!r}, but the model has no such parameter or "
                f"module; expected one of {', '.join(names[:20])}, another parameter, or a module"
            )
        trained |= named
    return trained


def _freeze(module: nn.Module, trained: Collection[str]) -> None:
    """Freezes all parameters except `trained`, which has one name of each, even if it is tied.

    Batch normalisations without trained parameters then use their loaded statistics.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    left = {id(named[name]) for name in trained}
    for parameter in named.values():
        parameter.requires_grad_(parameter.requires_grad and id(parameter) in left)
    for part in module.modules():
        if isinstance(part, _BatchNorm) and not any(id(p) in left for p in part.parameters()):
            part.eval()


def _joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
