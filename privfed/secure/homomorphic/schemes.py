"""BFV and CKKS: TenSEAL behind whole numbers and bytes."""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privfed.privacy.integers import Integers
from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic.parameters import (
    DEGREE,
    MODULI_BITS,
    P,
    Parameters,
    Q,
    Z,
    most_rows,
)
from privfed.secure.homomorphic.tenseal_library import bytes_field, tenseal, varint
from privfed.secure.summation import Aborted

_LARGEST = 70_000
"""Bytes of the largest ciphertext that is read."""
_PREFIX = 4
"""Bytes before a ciphertext of 2^14 bytes and more within a vector: its field, and its size."""
_SCALE = struct.Struct("<Bd")


@dataclass(frozen=True)
class Scheme(ABC):
    """Encrypts blocks of up to `slots` whole numbers; sums stay below 2^(`bits` - 1) in size.

    Keys and ciphertexts are TenSEAL's; a ciphertext read for a key stays with it.
    """

    bits: int
    name: ClassVar[str]
    code: ClassVar[int]
    """SEAL's number of the scheme."""
    modulus: ClassVar[int]
    """The plain modulus t; 0 where there is none."""
    transformed: ClassVar[bool]
    """Whether its ciphertexts are in the form of a number-theoretic transform."""
    slots: ClassVar[int]

    @property
    def parameters(self) -> Parameters:
        """What every key of this scheme has to have."""
        return Parameters(DEGREE, (Q, P), self.modulus)

    @property
    def room(self) -> float:
        """What every sum's numbers have to stay below in size."""
        return float(2 ** (self.bits - 1))

    @abstractmethod
    def keys(self) -> Any:
        """A fresh key pair. TenSEAL makes relinearisation keys as well; nobody is sent them."""

    @abstractmethod
    def encrypt(self, key: Any, block: Integers) -> bytes:
        """TenSEAL's bytes of one encrypted `block` of up to `slots` numbers."""

    @abstractmethod
    def decrypt(self, ciphertext: Any) -> Integers:
        """The numbers of one block. Raises `Aborted` for what is no sum within the limits."""

    @property
    @abstractmethod
    def most_rows(self) -> int:
        """How many rows a sum may have, but for a probability below 1e-20 per number."""

    @abstractmethod
    def _load(self, key: Any, data: bytes) -> Any: ...

    @property
    def scale(self) -> float:
        """The factor by which a number is multiplied before it is encrypted."""
        return 1.0

    def blocks(self, length: int) -> list[int]:
        """The sizes of the blocks of a row `[length]`."""
        return [min(self.slots, length - start) for start in range(0, length, self.slots)]

    def read(self, key: Any, data: bytes, size: int) -> Any:
        """One ciphertext of `size` numbers, in TenSEAL's own bytes. Raises `BadMessage`.

        TenSEAL takes a vector's size from the sender and would read beyond the slots.
        """
        if len(data) > _LARGEST:
            raise BadMessage("wrong length", f"a ciphertext of {len(data)} bytes")
        try:
            vector = self._load(key, data)
        except (ValueError, RuntimeError) as error:
            raise BadMessage("no ciphertext", "bytes that are none of this session") from error
        parts = vector.ciphertext()
        if len(parts) != 1 or vector.size() != size:
            raise BadMessage("wrong length", f"a ciphertext that is not of {size} numbers")
        if parts[0].size() != 2 or parts[0].is_transparent() or parts[0].scale != self.scale:
            raise BadMessage("no ciphertext", "one of another form than this scheme's")
        if parts[0].is_ntt_form() != self.transformed:
            raise BadMessage("no ciphertext", "one of another form than this scheme's")
        self.content(data, size)
        return vector

    def content(self, data: bytes, size: int) -> bytes:
        """SEAL's ciphertext within the bytes of TenSEAL's vector of `size` numbers.

        All else in them, which does not change what is summed, its sender could choose: it has to
        be the sizes `[size]` and this scheme's scale. Raises `BadMessage`.
        """
        start = bytes_field(1, varint(size))
        inner = data[len(start) + _PREFIX : len(data) - len(self._end)]
        if data != start + bytes_field(2, inner) + self._end:
            raise BadMessage(
                "no ciphertext",
                f"a vector that says other than its ciphertext, that its sizes are [{size}], and "
                "the scheme's scale",
            )
        return inner

    @property
    def _end(self) -> bytes:
        """What follows the ciphertext in a vector's bytes."""
        return b""


@dataclass(frozen=True)
class BfvScheme(Scheme):
    """Exact: integers modulo the prime t, the first beyond 2^32 that is 1 modulo 2 N."""

    name: ClassVar[str] = "bfv"
    code: ClassVar[int] = 1
    transformed: ClassVar[bool] = False
    slots: ClassVar[int] = DEGREE
    modulus: ClassVar[int] = 2**32 + 24577

    @property
    def room(self) -> float:
        return self.modulus // 2

    def keys(self) -> Any:
        library = tenseal()
        return library.context(
            library.SCHEME_TYPE.BFV, DEGREE, self.modulus, MODULI_BITS, n_threads=1
        )

    def encrypt(self, key: Any, block: Integers) -> bytes:
        return bytes(tenseal().bfv_vector(key, block.tolist()).serialize())

    def decrypt(self, ciphertext: Any) -> Integers:
        return np.array(ciphertext.decrypt(), dtype=np.int64)

    @property
    def most_rows(self) -> int:
        deviation = Z * (math.sqrt(DEGREE / 12) + 0.5)
        return most_rows(0.5, deviation, Q / (2 * self.modulus))

    def _load(self, key: Any, data: bytes) -> Any:
        return tenseal().bfv_vector_from(key, data)


@dataclass(frozen=True)
class CkksScheme(Scheme):
    """Approximate, and exact once rounded: real numbers times the scale 2^(53 - bits)."""

    name: ClassVar[str] = "ckks"
    code: ClassVar[int] = 2
    modulus: ClassVar[int] = 0
    transformed: ClassVar[bool] = True
    slots: ClassVar[int] = DEGREE // 2

    def keys(self) -> Any:
        library = tenseal()
        return library.context(
            library.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=MODULI_BITS, n_threads=1
        )

    def encrypt(self, key: Any, block: Integers) -> bytes:
        numbers = block.astype(np.float64).tolist()
        return bytes(tenseal().ckks_vector(key, numbers, self.scale).serialize())

    def decrypt(self, ciphertext: Any) -> Integers:
        decrypted = np.array(ciphertext.decrypt(), dtype=np.float64)
        rounded = np.rint(decrypted)
        if not bool(np.abs(decrypted - rounded).max(initial=0.0) <= 0.25):
            raise Aborted("a sum decrypts to numbers that are not whole; its limits were broken")
        return rounded.astype(np.int64)

    @property
    def scale(self) -> float:
        return 2.0 ** (53 - self.bits)

    @property
    def most_rows(self) -> int:
        deviation = Z * (Z * DEGREE / math.sqrt(24) + DEGREE / 2)
        return most_rows(DEGREE / 2, deviation, self.scale / 4)

    @property
    def _end(self) -> bytes:
        return _SCALE.pack(3 << 3 | 1, self.scale)

    def _load(self, key: Any, data: bytes) -> Any:
        return tenseal().ckks_vector_from(key, data)
