"""The layout of models as flat vectors `[d]`, and of clients' messages as rows `[m]`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.core.deferred import Tensor, nn, torch

Indices = NDArray[np.int64]
"""Ids of clients or of examples `[n]`."""


def all_finite(numbers: Tensor) -> bool:
    """Whether all `numbers`, of any shape, are finite; makes no tensor as long as they are."""
    if not numbers.numel():
        return True
    return bool(torch.stack(numbers.aminmax()).isfinite().all())  # both are NaN if a number is


@dataclass(frozen=True)
class Layout:
    """The names and sizes of a row's parts, in order: for example (("delta", d), ("weight", 1))."""

    parts: tuple[tuple[str, int], ...]

    @property
    def length(self) -> int:
        """The number of entries in a row."""
        return sum(size for _, size in self.parts)

    def view(self, flat: Tensor, name: str) -> Tensor:
        """Returns the part `name` of `flat` `[..., m]` as a view. Raises `KeyError` without it."""
        start = 0
        for part, size in self.parts:
            if part == name:
                return flat[..., start : start + size]
            start += size
        raise KeyError(f"no part {name!r} in {self.parts}")

    def plus(self, name: str, size: int) -> Layout:
        """Returns the layout with one more part appended."""
        return Layout((*self.parts, (name, size)))


@dataclass(frozen=True)
class Shapes:
    """The names and shapes of a module's trainable parameters, in the order of the vector `[d]`."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> Shapes:
        """Returns the names and shapes of the trainable parameters of `module`."""
        named = [(name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(shape for _, shape in named))

    @classmethod
    def named(cls, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
        """Returns the `Shapes` of parameters with these names and shapes, in this order."""
        return cls(tuple(shapes), tuple(shapes.values()))

    @property
    def by_name(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter by its name."""
        return dict(zip(self.names, self.shapes, strict=True))

    @property
    def length(self) -> int:
        """d, the number of trainable parameters."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each parameter, in order."""
        return tuple(math.prod(shape) for shape in self.shapes)

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns `parameters`, tensors by name, as one new vector `[d]`; other names are ignored.

        Raises `KeyError` if one is missing.
        """
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def flatten_exactly(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns `flatten(parameters)`; raises `ValueError` for other names or shapes."""
        given = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
        if given != self.by_name:
            raise ValueError(f"found {given}; expected the names and shapes {self.by_name}")
        return self.flatten(parameters)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns `flat` `[..., d]` as parameters `[..., *shape]` by name, without a copy."""
        ends = list(itertools.accumulate(math.prod(shape) for shape in self.shapes))
        starts = [0, *ends[:-1]]
        return {
            name: flat[..., start:end].reshape((*flat.shape[:-1], *shape))
            for name, shape, start, end in zip(self.names, self.shapes, starts, ends, strict=True)
        }
