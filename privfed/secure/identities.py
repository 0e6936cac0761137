"""Long-term signing keys of simulated parties, and the directory of their public keys.

In a deployment each party holds its own key, and the directory is a public-key infrastructure.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privfed.secure.primitives import KEY, derive, signing_key

Directory = Mapping[int, bytes]
"""Every client's long-term Ed25519 public key, by client number.

Without it a malicious server could impersonate all other clients.
"""


@functools.cache
def _root() -> bytes:
    return os.urandom(KEY)


@functools.lru_cache(maxsize=1 << 14)
def client_identity(client: int) -> Ed25519PrivateKey:
    """Returns the simulated long-term signing key of a client."""
    return signing_key(derive(_root(), b"identity", client.to_bytes(8, "little")))


@functools.cache
def office_identity(office: str) -> Ed25519PrivateKey:
    """Returns the simulated long-term signing key of `office`: the key "holder" or the "server"."""
    return Ed25519PrivateKey.generate()


def verifying_key(identity: Ed25519PrivateKey) -> bytes:
    """Returns the public key `[32]` of `identity`."""
    return identity.public_key().public_bytes_raw()


def client_directory(clients: Iterable[int]) -> Directory:
    """Returns the simulated directory of `clients`."""
    return {client: verifying_key(client_identity(client)) for client in clients}
