"""Where in a flat update `[d]` the layers lie that give examples and labels away."""

from __future__ import annotations

import math

from torch import Tensor, nn

from privfed.errors import Refused
from privfed.models.network import Network


def first_layer(
    network: Network, update: Tensor, features: tuple[int, ...]
) -> tuple[Tensor, Tensor] | None:
    """The parts of `update` for a linear first layer, weight `[h, k]` and bias `[h]`.

    None where the model does not begin with one that takes a whole example of k numbers.
    """
    names, width = network.shapes.names, math.prod(features)
    linear = next((m for m in network.module.modules() if isinstance(m, nn.Linear)), None)
    if linear is None or linear.bias is None or linear.in_features != width or len(names) < 2:
        return None
    name_of = {id(tensor): name for name, tensor in network.module.named_parameters()}
    if (name_of.get(id(linear.weight)), name_of.get(id(linear.bias))) != names[:2]:
        return None
    parts = network.shapes.views(update)
    return parts[names[0]], parts[names[1]]


def last_bias(network: Network, update: Tensor, classes: int) -> Tensor:
    """The part `[classes]` of `update` for the last layer's bias. Raises `Refused` for none."""
    parts = network.shapes.views(update)
    name = network.shapes.names[-1]
    if parts[name].shape != (classes,):
        raise Refused(
            f"the model's last parameter is {name!r} of shape {tuple(parts[name].shape)}; expected "
            f"a bias with one number per class, [{classes}], from which labels are read"
        )
    return parts[name]
