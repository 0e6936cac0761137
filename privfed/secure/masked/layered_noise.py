"""The noise of one client in layers, each from a seed that its holders can give to the server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from privfed.privacy.integers import Integers
from privfed.privacy.noise.shares import Layers
from privfed.secure.masked.seeded_uniforms import CipherUniforms
from privfed.secure.packing import Words
from privfed.secure.primitives import KEY
from privfed.streams import Keys


@dataclass(frozen=True)
class ClientNoise:
    """A client's noise in layers, drawn with `keys`; each layer's from a seed of its own."""

    layers: Layers
    keys: Keys

    def seeds(self, clients: int) -> tuple[bytes, ...]:
        """The seeds of layers 1 to L: each is the hash of the one before, and tells later ones."""
        seeds = []
        seed = self._seed(b"layers")
        for _ in range(self.layers.count(clients)):
            seeds.append(seed)
            seed = next_layer(seed)
        return tuple(seeds)

    def _seed(self, purpose: bytes) -> bytes:
        return self.keys.derived(purpose).bits(KEY // 8).tobytes()

    def draw(self, clients: int, seeds: tuple[bytes, ...], length: int) -> Integers:
        """The noise `[length]` of one of `clients`: its base, and the layers of all `seeds`."""
        total = np.zeros(length, dtype=np.int64)
        self.add(total, clients, seeds)
        return total

    def add(self, total: Integers | Words, clients: int, seeds: tuple[bytes, ...]) -> None:
        """Add the noise of `draw` to `total` `[length]` in place, modulo what its words hold."""
        base = self.layers.base(clients)
        shares = (base, *(self.layers.layer(clients, k + 1) for k in range(len(seeds))))
        for share, seed in zip(shares, (self._seed(b"base"), *seeds), strict=True):
            for part, noise in share.blocks(CipherUniforms(seed), len(total)):
                total[part] += noise.astype(total.dtype)


def next_layer(seed: bytes) -> bytes:
    """The seed of the layer after that of `seed`."""
    return hashlib.sha256(b"privfed layer" + seed).digest()


def subtract_layer(total: Words, layers: Layers, clients: int, number: int, seed: bytes) -> None:
    """Take layer `number` of one of `clients`, by its `seed`, off `total` `[length]` in place."""
    share = layers.layer(clients, number)
    for part, noise in share.blocks(CipherUniforms(seed), len(total)):
        total[part] -= noise.astype(total.dtype)
