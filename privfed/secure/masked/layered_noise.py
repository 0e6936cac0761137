"""The noise of one client in layers, each from a seed that its holders can give to the server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from privfed.privacy.integers import Integers
from privfed.privacy.noise.shares import Layers
from privfed.secure.primitives import KEY
from privfed.streams import Keys


@dataclass(frozen=True)
class ClientNoise:
    """A client's noise in layers, drawn with `keys`; each layer's from a seed of its own."""

    layers: Layers
    keys: Keys

    def seeds(self, clients: int) -> tuple[bytes, ...]:
        """The seeds of layers 1 to T: each is the hash of the one before, and tells later ones."""
        seeds = []
        seed = self.keys.derived(b"layers").bits(KEY // 8).tobytes()
        for _ in range(self.layers.count(clients)):
            seeds.append(seed)
            seed = next_layer(seed)
        return tuple(seeds)

    def draw(self, clients: int, seeds: tuple[bytes, ...], length: int) -> Integers:
        """The noise `[length]` of one of `clients`: its base, and the layers of all `seeds`."""
        total = self.layers.base(clients).draw(self.keys.derived(b"base"), length)
        for number, seed in enumerate(seeds, start=1):
            total = total + layer_noise(self.layers, clients, number, seed, length)
        return total


def next_layer(seed: bytes) -> bytes:
    """The seed of the layer after that of `seed`."""
    return hashlib.sha256(b"privfed layer" + seed).digest()


def layer_noise(layers: Layers, clients: int, number: int, seed: bytes, length: int) -> Integers:
    """Layer `number` of a client `[length]`, to itself and to the server that takes it off."""
    return layers.layer(clients, number).draw(Keys(seed, secret=True), length)
