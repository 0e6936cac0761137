"""Made-up text, for networks that say what comes next."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from privfed.data.federation import Examples
from privfed.parts import Part
from privfed.streams import Streams

TOKENS, LENGTH = 64, 20
LIKELY = 0.7


class Characters(Part):
    """Made-up sequences of 20 tokens: after each, one of 64 is likely, and any other may follow."""

    size: int = 20
    """Sequences per client."""
    natural_partition: ClassVar[bool] = True
    real_people: ClassVar[bool] = False

    @property
    def squared_norm(self) -> None:
        """Tokens have no norm."""
        return None

    def sources(self, seed: int) -> tuple[str, ...]:
        return (f"characters, made from seed {seed}",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._made("outside/characters", clients, streams)

    def load_test(self, clients: int, streams: Streams) -> Examples:
        return self._made("outside/characters/public", clients, streams)

    def _made(self, stream: str, clients: int, streams: Streams) -> Examples:
        follows = streams.at("outside/characters/grammar").generator().permutation(TOKENS)
        rng, count = streams.at(stream).generator(), clients * self.size
        text = rng.integers(0, TOKENS, (count, LENGTH + 1))
        for place in range(LENGTH):
            likely = rng.random(count) < LIKELY
            text[likely, place + 1] = follows[text[likely, place]]
        x, y = torch.from_numpy(text[:, :-1].copy()), torch.from_numpy(text[:, 1:].copy())
        return Examples(x, y, TOKENS, owners=np.repeat(np.arange(clients), self.size))
