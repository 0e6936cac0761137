"""What the factors of an adapted weight are called, in a layer and in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

_A, _B, _SCALE = "_lora_A", "_lora_B", "_lora_scale"


class Factors(NamedTuple):
    """The names of A, of B, and of the number that B A is multiplied by."""

    a: str
    b: str
    scale: str


def factors(weight: str) -> Factors:
    """The names for the weight of this name, whatever module's name stands before it."""
    return Factors(weight + _A, weight + _B, weight + _SCALE)


def is_factor(name: str) -> bool:
    """Whether it is the name of one of them."""
    return name.endswith((_A, _B, _SCALE))


def with_changes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` by name, with each change in its weight and without factors."""
    weights = {name: tensor for name, tensor in tensors.items() if not is_factor(name)}
    for name in tensors:
        if name.endswith(_B):
            weight = name.removesuffix(_B)
            names = factors(weight)
            product = (tensors[names.b] @ tensors[names.a]) * tensors[names.scale]
            weights[weight] = tensors[weight] + product.reshape(tensors[weight].shape)
    return weights
