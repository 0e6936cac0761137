"""The noise of one client in layers, each from a seed that its holders can give to the server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from privfed.privacy.noise.shares import Layers, Whole
from privfed.secure.primitives import KEY
from privfed.streams import Keys


@dataclass(frozen=True)
class ClientNoise:
    """A client's noise in layers, drawn with `keys`; each layer's from a seed of its own."""

    layers: Layers
    keys: Keys

    def seeds(self, clients: int) -> tuple[bytes, ...]:
        """Of layers 1 to T, each the hash of the one before, so that one tells all later ones."""
        count, found = self.layers.count(clients), []
        seed = self.keys.derived(b"layers").bits(KEY // 8).tobytes()
        for _ in range(count):
            found.append(seed)
            seed = next_layer(seed)
        return tuple(found)

    def draw(self, clients: int, seeds: tuple[bytes, ...], length: int) -> Whole:
        """Base and all layers `[length]`."""
        total = self.layers.base(clients).draw(self.keys.derived(b"base"), length)
        for number, seed in enumerate(seeds, start=1):
            total = total + layer_noise(self.layers, clients, number, seed, length)
        return total


def next_layer(seed: bytes) -> bytes:
    return hashlib.sha256(b"privfed layer" + seed).digest()


def layer_noise(layers: Layers, clients: int, number: int, seed: bytes, length: int) -> Whole:
    """What layer `number` of a client is, to itself and to the server that takes it off."""
    return layers.layer(clients, number).draw(Keys(seed, secret=True), length)
