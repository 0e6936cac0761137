"""The population: every client's examples in one contiguous store with offsets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """`x` `[N, *features]` float32, `y` `[N]` int64 labels below `classes`.

    `owners` `[N]` says whose each example is, where the source knows (the natural partition).
    """

    x: Tensor
    y: Tensor
    classes: int
    owners: Indices | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Indices) -> Examples:
        chosen = torch.from_numpy(index)
        owners = None if self.owners is None else self.owners[index]
        return Examples(self.x[chosen], self.y[chosen], self.classes, owners)


@dataclass(frozen=True)
class Federation:
    """Clients' examples, and the public test set that belongs to none of them.

    Client k owns rows `offsets[k]:offsets[k + 1]` of `examples`. A client may own nothing.
    """

    examples: Examples
    offsets: Indices
    test: Examples

    @classmethod
    def of(cls, examples: Examples, owners: Indices, clients: int, test: Examples) -> Federation:
        """Group `examples` by their owner `[N]`, a number in [0, clients)."""
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(examples.take(order), offsets, test)

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    def sizes(self, ids: Indices) -> Indices:
        """How many examples each of `ids` `[c]` owns. Simulation-only: never published."""
        return self.offsets[ids + 1] - self.offsets[ids]

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The examples at `rows` `[...]` of the store: x `[..., *features]` and y `[...]`.

        Padding is a row index like any other; the caller masks it.
        """
        return self.examples.x[rows], self.examples.y[rows]

    def to(self, device: torch.device) -> Federation:
        def moved(part: Examples) -> Examples:
            return Examples(part.x.to(device), part.y.to(device), part.classes, part.owners)

        return Federation(moved(self.examples), self.offsets, moved(self.test))
