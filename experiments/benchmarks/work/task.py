"""A workload as plain arrays, and its model in plain PyTorch: everything that a peer receives.

It imports nothing of privfed, because peers run it in environments without privfed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.benchmarks.work.characters import CausalTransformer, Gated, Recurrent


@dataclass(frozen=True)
class Task:
    """Client k owns rows `offsets[k]:offsets[k + 1]` of x and y; `cohorts` `[rounds, n]` take part.

    x are numbers, or tokens `[N, T]` with y `[N, T]`. `model` names one of `MODELS`, with `width`
    outputs; `start` `[d]` is its initial flat vector. A `clip` of 0 means no privacy.
    """

    name: str
    model: str
    width: int
    x: NDArray[np.float32] | NDArray[np.int64]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]
    cohorts: NDArray[np.int64]
    start: NDArray[np.float32]
    lr: float
    batch_size: int
    clip: float
    noise_multiplier: float

    def save(self, path: Path) -> None:
        np.savez(path, **asdict(self))

    @classmethod
    def load(cls, path: Path) -> Task:
        with np.load(path) as archive:
            values = {name: archive[name] for name in archive.files}
        return cls(**{k: v if v.ndim else v.item() for k, v in values.items()})

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """Returns the client's own examples, in the order in which they are stored."""
        place = slice(self.offsets[client], self.offsets[client + 1])
        return torch.from_numpy(self.x[place]), torch.from_numpy(self.y[place])

    def module(self) -> nn.Module:
        """Returns the initial model."""
        module = MODELS[self.model](self.x.shape[1:], self.width)
        nn.utils.vector_to_parameters(torch.tensor(self.start), module.parameters())
        return module

    def loss(self, module: nn.Module) -> float:
        """Returns the mean loss over all examples of all clients."""
        x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        with torch.no_grad():
            pieces = [
                mean_loss(module(a), b).double() * len(b)
                for a, b in zip(torch.split(x, 1000), torch.split(y, 1000), strict=True)
            ]
        return float(sum(pieces)) / len(y)


def mean_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the mean cross-entropy of outputs `[B, *positions, width]` over examples and
    positions.
    """
    return nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten())


def logistic(features: tuple[int, ...], width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(features)), width))


def convolutional(features: tuple[int, ...], width: int) -> nn.Module:
    """Two convolutions with pooling and two linear layers.

    >>> sum(p.numel() for p in convolutional((1, 28, 28), 10).parameters())
    421642
    """
    depth, height, across = features
    return nn.Sequential(
        nn.Conv2d(depth, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (across // 4), 128),
        nn.ReLU(),
        nn.Linear(128, width),
    )


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "logistic": logistic,
    "convolutional": convolutional,
    "transformer": CausalTransformer,
    "recurrent": Recurrent,
    "gated": Gated,
}
"""Constructors by name, from the shape of an example and the number of outputs."""
