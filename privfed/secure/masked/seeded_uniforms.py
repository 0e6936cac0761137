"""Uniform numbers of 192 bits by AES-256-CTR, for noise that two parties draw alike from a seed."""

from __future__ import annotations

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privfed.privacy.noise.uniforms import LEADING, REST, Leading

_AES_BLOCK = 16
_AT_ONCE = 1 << 18
"""Bytes of the stream at once: they stay in the processor's cache."""


class CipherUniforms:
    """The numbers of a `seed` `[32]`: whoever has it has all of them, and others tell none.

    The leading bits are little-endian words of one stream. The rest of the number at place p are
    the first 20 bytes, little-endian, of another, from its block 2 p on. Each stream has a key of
    its own, a hash of the seed.
    """

    def __init__(self, seed: bytes) -> None:
        leading, self._rest = (
            algorithms.AES(hashlib.sha256(purpose + seed).digest())
            for purpose in (b"privfed layer draws", b"privfed layer ties")
        )
        self._stream = Cipher(leading, modes.CTR(bytes(_AES_BLOCK))).encryptor()
        self._zeros = bytes(_AT_ONCE)
        self._bytes = bytearray(_AT_ONCE + _AES_BLOCK - 1)  # what the library asks for

    def leading(self, count: int) -> Leading:
        """The leading bits `[count]` of the next numbers, valid until the next are asked for."""
        size = count * LEADING // 8
        if size > len(self._zeros):
            self._zeros, self._bytes = bytes(size), bytearray(size + _AES_BLOCK - 1)
        self._stream.update_into(memoryview(self._zeros)[:size], self._bytes)
        return np.frombuffer(self._bytes, "<u4", count=count)

    def rest(self, place: int) -> int:
        begins = (2 * place).to_bytes(_AES_BLOCK, "big")
        stream = Cipher(self._rest, modes.CTR(begins)).encryptor()
        return int.from_bytes(stream.update(bytes(REST // 8)), "little")
