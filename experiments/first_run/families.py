"""Twelve families of models, each with simulated clients and public examples to learn from.

Images are handwritten digits at random places of a noisy field, of which classifiers also read the
rows as a sequence; texts come from a random Markov chain of order two; the targets of tables from a
random network. Public examples are drawn like the clients', but independently (digits: from other
images).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

import privfed

Population = privfed.Arrays | privfed.Table
Clients = Mapping[str, Any]

_SIDE, _CLASSES = 12, 10
_TOKENS, _LENGTH = 30, 24
_COLUMNS = 20
_PUBLIC = 1000


@dataclass(frozen=True)
class Family:
    """A kind of model: its population by seed, and a name or a function that makes the module."""

    population: Callable[[int], Population]
    model: Callable[[], nn.Module] | str = "mlp"
    clients: int = 500


def _clients(x: NDArray[Any], y: NDArray[Any], each: int) -> Clients:
    return {
        str(first // each): (x[first : first + each], y[first : first + each])
        for first in range(0, len(y), each)
    }


def _digits(seed: int, count: int, public: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """`count` digits `[count, 12, 12]` at random places, and their classes."""
    data, generator = load_digits(), np.random.default_rng([seed, public])
    chosen = np.flatnonzero((np.arange(len(data.target)) % 5 == 0) == public)
    drawn = generator.choice(chosen, count)
    x = generator.uniform(0, 3, (count, _SIDE, _SIDE)).astype(np.float32)
    for place, image in enumerate(data.images[drawn]):
        top, left = generator.integers(0, _SIDE - len(image) + 1, 2)
        window = x[place, top : top + len(image), left : left + len(image)]
        np.maximum(window, image, out=window)
    return x, data.target[drawn].astype(np.int64)


def _images(seed: int, shape: tuple[int, ...] = (1, _SIDE, _SIDE)) -> Population:
    (x, y), (public, labels) = _digits(seed, 10_000, False), _digits(seed, _PUBLIC, True)
    x, public = x.reshape(-1, *shape), public.reshape(-1, *shape)
    return privfed.Arrays(
        _clients(x, y, 20),
        clients=500,
        shape=shape,
        bounds=(0, 16),
        classes=_CLASSES,
        test=(public, labels),
    )


def _texts(seed: int) -> Population:
    chain = np.random.default_rng(0).dirichlet(np.full(_TOKENS, 0.05), (_TOKENS, _TOKENS))
    generator = np.random.default_rng([seed, 2])

    def written(count: int) -> NDArray[np.int64]:
        x = generator.integers(0, _TOKENS, (count, _LENGTH))
        for place in range(2, _LENGTH):
            cumulated = chain[x[:, place - 2], x[:, place - 1]].cumsum(-1)
            after = (generator.random((count, 1)) > cumulated).sum(-1)
            x[:, place] = np.minimum(after, _TOKENS - 1)
        return x

    x = written(4000)
    people = {str(first // 8): x[first : first + 8] for first in range(0, len(x), 8)}
    return privfed.Arrays(
        people, clients=500, shape=(_LENGTH,), tokens=_TOKENS, next_token=True, test=written(400)
    )


def _rows(seed: int, count: int, each: int, task: str) -> pandas.DataFrame:
    """`count` rows of a table with the labels of `task`, `each` of them of one client."""
    fixed, generator = np.random.default_rng(1), np.random.default_rng([seed, count])
    inner, outer = fixed.normal(size=(_COLUMNS, 8)), fixed.normal(size=(8, 5))

    def target(x: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.tanh(x @ inner / np.sqrt(_COLUMNS)) @ outer)

    x = generator.normal(size=(count, _COLUMNS)).clip(-3, 3)
    z = target(x) + generator.normal(0, 0.2, (count, 5))
    rare = np.quantile(target(fixed.normal(size=(20_000, _COLUMNS)).clip(-3, 3))[:, 0], 0.99)
    labels: dict[str, NDArray[Any]] = {
        "number": {"y": (120_000 + 30_000 * z[:, 0]).clip(0, 300_000)},
        "labels": {f"y{place}": (z[:, place] > 0.8).astype(int) for place in range(5)},
        "rare": {"y": (z[:, 0] > rare).astype(int)},
        "two": {"y": (z[:, 0] > 0).astype(int)},
    }[task]
    columns = {f"x{place}": x[:, place] for place in range(_COLUMNS)}
    return pandas.DataFrame({"client": np.arange(count) // each, **columns, **labels})


def _table(seed: int, task: str, rows: int = 10_000, each: int = 20) -> Population:
    train, public = _rows(seed, rows, each, task), _rows(seed, min(rows, _PUBLIC) - 1, each, task)
    several = [f"y{place}" for place in range(5)]
    form: dict[str, dict[str, Any]] = {
        "number": {"label": "y", "label_bounds": (0, 300_000)},
        "labels": {"label": several},
        "rare": {"label": "y", "classes": 2},
        "two": {"label": "y", "classes": 2},
    }
    return privfed.Table(
        train,
        client="client",
        clients=rows // each,
        test=public.drop(columns="client"),
        features={f"x{place}": (-3, 3) for place in range(_COLUMNS)},
        **form[task],
    )


def _convolutional() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 9, _CLASSES))


class _Block(nn.Module):
    """A residual block of two convolutions with group normalisation."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(4, after))
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1), nn.GroupNorm(4, after))
        same = (before, stride) == (after, 1)
        self.skip = nn.Identity() if same else nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.skip(x))


def _residual() -> nn.Module:
    blocks = (_Block(8, 8, 1), _Block(8, 16, 2), _Block(16, 16, 1))
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, _CLASSES))
    return nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), *blocks, *pooled)


class _Recurrent(nn.Module):
    """A recurrent network over the rows of an image."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.states = kind(_SIDE, 32, batch_first=True)
        self.output = nn.Linear(32, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.states(x)[0][:, -1])
        return out


def _encoder(norm_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class _Encoder(nn.Module):
    """A transformer encoder over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(_SIDE, 32), nn.Linear(32, _CLASSES)
        self.places = nn.Parameter(0.1 * torch.randn(_SIDE, 32))
        self.encoder = _encoder()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.encoder(self.input(x) + self.places).mean(1))
        return out


class _Causal(nn.Module):
    """A causal language model."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.output = nn.Embedding(_TOKENS, 32), nn.Linear(32, _TOKENS)
        self.places = nn.Parameter(0.1 * torch.randn(_LENGTH, 32))
        self.encoder = _encoder(norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        out: Tensor = self.output(self.encoder(self.input(x) + self.places[:length], mask=mask))
        return out


_SEQUENCES = partial(_images, shape=(_SIDE, _SIDE))

FAMILIES = {
    "logistic": Family(_images, "logistic"),
    "MLP": Family(_images),
    "CNN": Family(_images, _convolutional),
    "ResNet, group normalisation": Family(_images, _residual),
    "LSTM": Family(_SEQUENCES, partial(_Recurrent, nn.LSTM)),
    "GRU": Family(_SEQUENCES, partial(_Recurrent, nn.GRU)),
    "transformer encoder": Family(_SEQUENCES, _Encoder),
    "causal language model": Family(_texts, _Causal),
    "regression, 0 to 300,000": Family(partial(_table, task="number")),
    "five labels": Family(partial(_table, task="labels")),
    "1 % positives": Family(partial(_table, task="rare")),
    "300 rows": Family(partial(_table, task="two", rows=300, each=10), clients=30),
}
