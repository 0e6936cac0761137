"""A client's noise in layers, whose seeds the holders of shares can reveal to the server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privfed.core.streams import Keys
from privfed.privacy.integers import Integers
from privfed.privacy.noise.shares import Layers
from privfed.privacy.noise.table_sampler import LEADING, REST, Leading
from privfed.secure.packing import Words
from privfed.secure.primitives import KEY

_AES_BLOCK = 16
_BATCH_SIZE = 1 << 18
"""Bytes of the stream that are generated at once; they fit into the processor's cache."""


class CipherUniforms:
    """Pseudorandom numbers from a `seed` `[32]`, indistinguishable from random without the seed.

    AES in counter mode generates two streams, each with its own key, a hash of the seed. The
    leading bits of number p = 0, 1, … are the p-th little-endian word of the first stream. Its
    remaining bits are 20 little-endian bytes of the second stream, from AES block 2 p on.
    """

    def __init__(self, seed: bytes) -> None:
        leading, self._rest = (
            algorithms.AES(hashlib.sha256(purpose + seed).digest())
            for purpose in (b"privfed layer draws", b"privfed layer ties")
        )
        self._stream = Cipher(leading, modes.CTR(bytes(_AES_BLOCK))).encryptor()
        self._zeros = bytes(_BATCH_SIZE)
        self._bytes = bytearray(_BATCH_SIZE + _AES_BLOCK - 1)  # length that the library requires

    def leading(self, count: int) -> Leading:
        """Returns the leading bits `[count]` of the next numbers, valid until the next call."""
        size = count * LEADING // 8
        if size > len(self._zeros):
            self._zeros, self._bytes = bytes(size), bytearray(size + _AES_BLOCK - 1)
        self._stream.update_into(memoryview(self._zeros)[:size], self._bytes)
        return np.frombuffer(self._bytes, "<u4", count=count)

    def rest(self, place: int) -> int:
        begins = (2 * place).to_bytes(_AES_BLOCK, "big")
        stream = Cipher(self._rest, modes.CTR(begins)).encryptor()
        return int.from_bytes(stream.update(bytes(REST // 8)), "little")


@dataclass(frozen=True)
class ClientNoise:
    """A client's noise in layers, drawn with `keys`; each layer has its own seed."""

    layers: Layers
    keys: Keys

    def seeds(self, clients: int) -> tuple[bytes, ...]:
        """Returns the seeds of layers 1, 2, ..., each a hash of the one before.

        The number of layers is that for `clients` parties.
        """
        seeds = []
        seed = self._seed(b"layers")
        for _ in range(self.layers.count(clients)):
            seeds.append(seed)
            seed = next_layer(seed)
        return tuple(seeds)

    def _seed(self, purpose: bytes) -> bytes:
        return self.keys.derived(purpose).bits(KEY // 8).tobytes()

    def draw(self, clients: int, seeds: tuple[bytes, ...], length: int) -> Integers:
        """Returns one client's noise `[length]` among `clients`: its base and layers of `seeds`.

        The base is the part of the noise that is never removed.
        """
        total = np.zeros(length, dtype=np.int64)
        self.add(total, clients, seeds)
        return total

    def add(self, total: Integers | Words, clients: int, seeds: tuple[bytes, ...]) -> None:
        """Adds the noise of `draw` to `total` `[length]` in place, modulo its word size."""
        base = self.layers.base(clients)
        shares = (base, *(self.layers.layer(clients, k + 1) for k in range(len(seeds))))
        for share, seed in zip(shares, (self._seed(b"base"), *seeds), strict=True):
            for part, noise in share.blocks(CipherUniforms(seed), len(total)):
                total[part] += noise.astype(total.dtype)


def next_layer(seed: bytes) -> bytes:
    """Returns the seed of the layer that follows the layer of `seed`."""
    return hashlib.sha256(b"privfed layer" + seed).digest()


def subtract_layer(total: Words, layers: Layers, clients: int, number: int, seed: bytes) -> None:
    """Subtracts one client's layer `number` (from 1) from `total` `[length]` in place.

    The layer is drawn by its `seed`, and sized for `clients` parties.
    """
    share = layers.layer(clients, number)
    for part, noise in share.blocks(CipherUniforms(seed), len(total)):
        total[part] -= noise.astype(total.dtype)
