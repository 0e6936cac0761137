"""Synthetic examples of any number of clients: images, features, and text."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch

from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import Examples

SIDE, CLASSES = 28, 10
TOKENS, LENGTH = 64, 20
LIKELY = 0.7


class SyntheticRows(Part):
    """Examples of each client, and for scoring, from streams with their own `name`."""

    size: int = 20
    """Examples per client."""
    name: ClassVar[str]
    most_scored: ClassVar[int] = 1 << 62
    """Largest number of clients whose examples are generated for scoring."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = False

    @property
    def squared_norm(self) -> None:
        """Features are normal, and without bounds; tokens have no norm."""
        return None

    def sources(self, seed: int) -> tuple[str, ...]:
        return (f"{self.name}, made from seed {seed}",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self.made(f"outside/{self.name}", clients, streams)

    def load_test(self, clients: int, streams: Streams) -> Examples:
        few = min(clients, self.most_scored)
        return self.made(f"outside/{self.name}/public", few, streams)

    @abstractmethod
    def made(self, stream: str, clients: int, streams: Streams) -> Examples:
        """Returns the examples of `clients` clients, sampled from `stream`."""


class Images(SyntheticRows):
    """Images `[N, 1, 28, 28]`: a faint pattern of its class, under noise."""

    name: ClassVar[str] = "images"

    def made(self, stream: str, clients: int, streams: Streams) -> Examples:
        shape = (1, SIDE, SIDE)
        patterns = (
            streams.at("outside/images/classes").generator().standard_normal((CLASSES, *shape))
        )
        rng = streams.at(stream).generator()
        y = rng.integers(0, CLASSES, clients * self.size)
        x = rng.standard_normal((len(y), *shape), dtype=np.float32)
        x += 0.3 * patterns[y].astype(np.float32)
        owners = np.repeat(np.arange(clients), self.size)
        return Examples(torch.from_numpy(x), torch.from_numpy(y), CLASSES, owners=owners)


class Many(SyntheticRows):
    """Features `[N, 20]`, quick to make for a million clients."""

    size: int = 4
    name: ClassVar[str] = "many"
    most_scored: ClassVar[int] = 1000

    def made(self, stream: str, clients: int, streams: Streams) -> Examples:
        rng = streams.at(stream).generator()
        x = rng.standard_normal((clients * self.size, 20), dtype=np.float32)
        y = (x[:, :2] > 0).astype(np.int64) @ np.array([1, 2])
        owners = np.repeat(np.arange(clients), self.size)
        return Examples(torch.from_numpy(x), torch.from_numpy(y), 4, owners=owners)


class Characters(SyntheticRows):
    """Sequences of 20 tokens: after each, one of 64 tokens is likely, and any other is possible."""

    name: ClassVar[str] = "characters"

    def made(self, stream: str, clients: int, streams: Streams) -> Examples:
        follows = streams.at("outside/characters/grammar").generator().permutation(TOKENS)
        rng, count = streams.at(stream).generator(), clients * self.size
        text = rng.integers(0, TOKENS, (count, LENGTH + 1))
        for place in range(LENGTH):
            likely = rng.random(count) < LIKELY
            text[likely, place + 1] = follows[text[likely, place]]
        x, y = torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy())
        return Examples(x, y, TOKENS, owners=np.repeat(np.arange(clients), self.size))
