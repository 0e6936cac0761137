"""BFV and CKKS: an interface to TenSEAL in integers and bytes.

The largest number of rows of a sum follows from a scheme's parameters and the sum's noise.

BFV and CKKS both work in the ring of degree N = 4096, with ciphertexts modulo a prime q of 54 bits
and public keys modulo 109 bits, the most that leaves 128 bits of security at that degree with
ternary secrets (the homomorphic encryption standard of 2018).

The noise of a sum. SEAL encrypts with the public key modulo q p, p of 55 bits, and divides by p.
The noise of its samplers, below 21 (2 N + 1), vanishes in this division. What remains is a rounding
error f s + e: f pseudo-random, uniform in [-1/2, 1/2] and fresh for each row, s the key in {-1, 0,
1}, and e a rounding error of f s, within the same interval and symmetric. In each coefficient this
error is at most (N + 1) / 2. Uniform numbers are sub-Gaussian with their own variance, those within
1/2 with 1/4, so the error of n rows exceeds z sqrt(n) (sqrt(N / 12) + 1/2) with a probability below
2 exp(-z^2 / 2): 4e-22 for z = 10, used here. A message's rounding error depends on the message and
is counted at its largest value.

- BFV rounds q m / t by at most 1/2, and a sum is exact while n / 2 + z sqrt(n) (sqrt(N / 12) + 1/2)
  stays below q / 2t = 2^21: 3.5 million rows. Up to 1023 rows it is exact whatever the random
  choices.
- CKKS rounds a message's coefficients by at most 1/2, which is N / 2 in a slot, as is e. There f s
  has the variance |s|^2 N / 24, and |s|^2 <= z^2 N except with probability 4 exp(-z^2 / 2). In
  units of 1 / scale the error of a slot is less than n N / 2 + z sqrt(n) (z N / sqrt(24) + N / 2),
  which must stay below scale / 4. Numbers below 2^(bits - 1) times the scale, 2^(53 - bits), are
  below 2^52, a quarter of q, which leaves room for the noise. Rounding in float64 adds less than
  1e-3.

All this is for rows encrypted as specified. A Byzantine client can spoil a sum, as in any protocol
that hides rows.
"""

from __future__ import annotations

import importlib
import math
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privfed.core.errors import Refused
from privfed.privacy.integers import Integers
from privfed.secure.frames import BadMessage
from privfed.secure.summation import Aborted

DEGREE = 4096
"""N, the degree of the ring."""
MODULI_BITS = [54, 55]
Q = 2**54 - 172031
P = 2**55 - 311295
"""The primes that SEAL takes: the largest of 54 and of 55 bits that are 1 modulo 2 N."""
Z = 10.0
"""Number of standard deviations of a sum's noise for which the sum is proved exact."""
CIPHERTEXT = 61_750
"""Approximate bytes of a ciphertext: two polynomials of 54 bits in 64, compressed."""
PUBLIC_KEY = 123_550
"""Approximate bytes of a public key with its parameters."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of a scheme: the ring's `degree` N, the primes `moduli`, the plain modulus t.

    The `moduli` are q, of ciphertexts, and the special prime p, in this order; `plain` is t, or 0
    for CKKS.
    """

    degree: int
    moduli: tuple[int, ...]
    plain: int


def most_rows(per_row: float, std: float, room: float) -> int:
    """Returns the largest n with n * `per_row` + sqrt(n) * `std` <= `room`, for `per_row` > 0."""
    root = (math.sqrt(std**2 + 4 * per_row * room) - std) / (2 * per_row)
    return math.floor(root**2)


def tenseal() -> Any:
    """Returns the TenSEAL library. Raises `Refused` if it is not installed."""
    try:
        return importlib.import_module("tenseal")
    except ImportError as error:
        raise Refused(
            "secure.protocol bfv and ckks need TenSEAL, which is not installed; "
            'run "pip install tenseal", or use secure.protocol = "masks"'
        ) from error


def varint(number: int) -> bytes:
    """Returns `number` as a varint of protocol buffers."""
    if number < 128:
        return bytes([number])
    return bytes([128 + number % 128]) + varint(number // 128)


def bytes_field(number: int, body: bytes) -> bytes:
    """Returns field `number` with the bytes `body`, as protocol buffers encode it."""
    return bytes([number << 3 | 2]) + varint(len(body)) + body


_LARGEST = 70_000
"""Bytes of the largest ciphertext that is accepted."""
_PREFIX = 4
"""Bytes that precede a ciphertext of 2^14 bytes or more in a vector: its field and its size."""
_SCALE = struct.Struct("<Bd")


@dataclass(frozen=True)
class Scheme(ABC):
    """Encrypts blocks of up to `slots` integers whose sums are below `room` in absolute value.

    Keys and ciphertexts are TenSEAL's; a ciphertext keeps a reference to the key it was read for.
    """

    bits: int
    name: ClassVar[str]
    code: ClassVar[int]
    """SEAL's number of the scheme."""
    modulus: ClassVar[int]
    """The plain modulus t; 0 if there is none."""
    transformed: ClassVar[bool]
    """Whether ciphertexts are stored as number-theoretic transforms."""
    slots: ClassVar[int]

    @property
    def parameters(self) -> Parameters:
        """The parameters that every key of this scheme must have."""
        return Parameters(DEGREE, (Q, P), self.modulus)

    @property
    def room(self) -> float:
        """Exclusive bound on the absolute value of every sum's numbers."""
        return float(2 ** (self.bits - 1))

    @abstractmethod
    def keys(self) -> Any:
        """Returns a fresh key pair. TenSEAL also makes relinearisation keys; they are not sent."""

    @abstractmethod
    def encrypt(self, key: Any, block: Integers) -> bytes:
        """Returns TenSEAL's bytes of one encrypted `block` of up to `slots` numbers."""

    @abstractmethod
    def decrypt(self, ciphertext: Any) -> Integers:
        """Returns the integers of one block.

        CKKS raises `Aborted` if a decrypted number is more than 1/4 from the nearest integer.
        """

    @property
    @abstractmethod
    def most_rows(self) -> int:
        """Number of rows up to which sums are exact, except with probability 1e-20 per number."""

    @abstractmethod
    def _load(self, key: Any, data: bytes) -> Any: ...

    @property
    def scale(self) -> float:
        """The factor by which a number is multiplied before it is encrypted; 1 for BFV."""
        return 1.0

    def blocks(self, length: int) -> list[int]:
        """Returns the sizes of the blocks of a row `[length]`."""
        return [min(self.slots, length - start) for start in range(0, length, self.slots)]

    def read(self, key: Any, data: bytes, size: int) -> Any:
        """Parses one ciphertext of `size` numbers from TenSEAL's serialised form.

        Raises `BadMessage` if it is malformed, or of another size or form. The size is checked
        because TenSEAL takes it from the sender and would read beyond the slots.
        """
        if len(data) > _LARGEST:
            raise BadMessage("wrong length", f"a ciphertext has a size of {len(data)} bytes")
        try:
            vector = self._load(key, data)
        except (ValueError, RuntimeError) as error:
            raise BadMessage(
                "no ciphertext", "the bytes are no ciphertext of this session"
            ) from error
        parts = vector.ciphertext()
        if len(parts) != 1 or vector.size() != size:
            raise BadMessage("wrong length", f"a ciphertext is not of {size} numbers")
        if parts[0].size() != 2 or parts[0].is_transparent() or parts[0].scale != self.scale:
            raise BadMessage("no ciphertext", "the ciphertext has another form than this scheme's")
        if parts[0].is_ntt_form() != self.transformed:
            raise BadMessage("no ciphertext", "the ciphertext has another form than this scheme's")
        self.content(data, size)
        return vector

    def content(self, data: bytes, size: int) -> bytes:
        """Returns SEAL's ciphertext from the bytes of TenSEAL's vector of `size` numbers.

        The other bytes do not affect the sum, so a sender could choose them freely. Raises
        `BadMessage` unless they state this `size` and, for CKKS, the scale.
        """
        start = bytes_field(1, varint(size))
        inner = data[len(start) + _PREFIX : len(data) - len(self._end)]
        if data != start + bytes_field(2, inner) + self._end:
            raise BadMessage(
                "no ciphertext",
                f"the vector's sizes are not [{size}], or its scale is not the scheme's, although "
                "its ciphertext fits",
            )
        return inner

    @property
    def _end(self) -> bytes:
        """The bytes that follow the ciphertext in TenSEAL's encoding of a vector."""
        return b""


@dataclass(frozen=True)
class BfvScheme(Scheme):
    """BFV, exact: integers modulo the prime t, the first above 2^32 that is 1 modulo 8192."""

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
        std = Z * (math.sqrt(DEGREE / 12) + 0.5)
        return most_rows(0.5, std, Q / (2 * self.modulus))

    def _load(self, key: Any, data: bytes) -> Any:
        return tenseal().bfv_vector_from(key, data)


@dataclass(frozen=True)
class CkksScheme(Scheme):
    """CKKS: approximate sums of numbers times 2^(53 - bits), which rounding makes exact."""

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
            raise Aborted(
                "a sum decrypts to numbers that are not integers; its limits were exceeded"
            )
        return rounded.astype(np.int64)

    @property
    def scale(self) -> float:
        return 2.0 ** (53 - self.bits)

    @property
    def most_rows(self) -> int:
        std = Z * (Z * DEGREE / math.sqrt(24) + DEGREE / 2)
        return most_rows(DEGREE / 2, std, self.scale / 4)

    @property
    def _end(self) -> bytes:
        return _SCALE.pack(3 << 3 | 1, self.scale)

    def _load(self, key: Any, data: bytes) -> Any:
        return tenseal().ckks_vector_from(key, data)
