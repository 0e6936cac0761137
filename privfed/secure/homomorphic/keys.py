"""Public keys of homomorphic sums as bytes, and whether they have the scheme's own parameters."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic.schemes import Scheme
from privfed.secure.homomorphic.tenseal_library import tenseal


def public_half(keys: Any) -> bytes:
    """The public key and the parameters of TenSEAL's `keys`, and no other key.

    Always by way of bytes: TenSEAL's `make_context_public` forgets the secret key but keeps a
    decryptor that still works.
    """
    return bytes(
        keys.serialize(
            save_public_key=True,
            save_secret_key=False,
            save_galois_keys=False,
            save_relin_keys=False,
        )
    )


def read_public(data: bytes, scheme: Scheme) -> Any:
    """A public key with the parameters of `scheme`. Raises `BadMessage`.

    Raises `ValueError` where a secret key is with it.
    """
    try:
        key = tenseal().context_from(data, n_threads=1)
        public = key.has_public_key()  # which TenSEAL cannot say of a symmetric one
    except (ValueError, RuntimeError) as error:
        raise BadMessage("no public key", "bytes that TenSEAL cannot read") from error
    if key.has_secret_key():
        raise ValueError("a context with its secret key; only the key holder may have that one")
    if not public:
        raise BadMessage("no public key", "a context without one")
    check_parameters(key, scheme)
    return key


def check_parameters(key: Any, scheme: Scheme) -> None:
    """Raises `BadMessage` where N, q or t of `key` are not those that `scheme` is proved for.

    TenSEAL shows no moduli, but SEAL hashes all of them with the scheme and N: BLAKE2b over words
    of 64 bits. The hash of the scheme's constants has to be the same.
    """
    context, expected = key.seal_context().data, scheme.parameters
    if list(context.key_parms_id()) != _identifier(scheme):
        key_data = context.key_context_data()
        raise BadMessage(
            "wrong parameters",
            f"a key with N = {key_data.parms().poly_modulus_degree()} and moduli of "
            f"{key_data.total_coeff_modulus_bit_count()} bits; expected the N = {expected.degree}, "
            f"moduli {expected.moduli} and t = {expected.plain} of {scheme.name}",
        )


def _identifier(scheme: Scheme) -> list[int]:
    """SEAL's `parms_id`: four words."""
    parameters = scheme.parameters
    words = (scheme.code, parameters.degree, *parameters.moduli, parameters.plain)
    hashed = hashlib.blake2b(struct.pack(f"<{len(words)}Q", *words), digest_size=32)
    return list(struct.unpack("<4Q", hashed.digest()))
