"""Signing keys of sites and coordinators: Ed25519 (RFC 8032), as files and as text.

A site is identified by its public key, which is written as `ed25519:` followed by either 43
characters of base64url or 64 hexadecimal digits. The secret key is in a file that only its owner
may read.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accounting import regular
from accounting.durable import sync_folder
from privfed.core.errors import Broken, Refused, public_text
from privfed.secure.primitives import KEY, verified

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Permitted names of sites and federations; they need no quotes in a shell."""
EXPECTED_NAME = "at most 64 letters, digits and _ . -, with a letter or digit first"
_PUBLIC, _SECRET = "ed25519:", "ed25519-secret:"
_LETTERS, _DIGITS = 43, 64
"""Lengths of 32 bytes as base64url without padding, and as hexadecimal digits."""
_SMALL_ORDER = frozenset(
    bytes.fromhex(point)
    for point in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
"""Encodings (up to the sign) of points of order dividing 8, which would allow forgeries."""


class UnknownKey(Refused):
    """Raised for a text that is no Ed25519 public key, or a key of low order (forgeable)."""


class KeyUnusable(Broken):
    """Raised for a file of a secret key that is missing, damaged, or accessible to other users."""


@dataclass(frozen=True)
class PublicKey:
    """A public key, 32 bytes. Raises `UnknownKey` for another length, or a key of low order."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != KEY or _without_sign(self.raw) in _SMALL_ORDER:
            raise UnknownKey(
                "this text is no valid public key; ask its owner for the line that `privfed site "
                "key` prints"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text `ed25519:...` that `str` gives, or its form with hexadecimal digits.

        For an invalid text, raises `UnknownKey` without quoting it.
        """
        prefix, colon, spelt = text.partition(":")
        if prefix + colon != _PUBLIC:
            raise UnknownKey(
                f"a public key begins with {_PUBLIC!r}, but this text does not; paste the line "
                "that `privfed site key` prints"
            )
        return cls(_decoded(spelt, f"after {_PUBLIC!r}"))

    def __str__(self) -> str:
        return _PUBLIC + _encoded(self.raw)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether `signature` is a valid signature of this key on `data`."""
        return verified(self.raw, signature, data)


@dataclass(frozen=True)
class SiteKey:
    """A secret key with the name of its holder."""

    name: str
    identity: Ed25519PrivateKey

    @classmethod
    def draw(cls, name: str) -> Self:
        """Returns a new random key for `name`. Raises `Refused` if the name is invalid."""
        if not NAME.fullmatch(name):
            raise Refused(f"the name is {name!r}; expected {EXPECTED_NAME}")
        return cls(name, Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the key in the file at `path`.

        Raises:
          KeyUnusable: if the file is missing, damaged, or accessible to other users; the message
            never quotes the key.
        """
        try:
            with regular.opened(path) as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(4096).decode("ascii", "replace")
        except OSError as error:
            raise KeyUnusable(
                f"the key cannot be read: {public_text(error)}; make the file readable for this "
                "user"
            ) from error
        if stat.S_IMODE(mode) & 0o077:
            raise KeyUnusable(
                f"{path} has mode {stat.S_IMODE(mode):o}, but other users must have no access to a "
                "key; expected mode 600. Other users may have copied the key: unless you can rule "
                "that out, make a new key and send the new public key to the federation"
            )
        name, _, secret = text.removesuffix("\n").partition(" ")
        if not NAME.fullmatch(name) or not secret.startswith(_SECRET):
            raise KeyUnusable(
                f"{path} holds no secret key of privfed; restore the key, or make a new one"
            )
        try:
            raw = _decoded(secret.removeprefix(_SECRET), "of the secret")
        except UnknownKey as error:
            raise KeyUnusable(
                f"{path} is damaged: {public_text(error)}; restore the file"
            ) from None
        return cls(name, Ed25519PrivateKey.from_private_bytes(raw))

    @property
    def public(self) -> PublicKey:
        """The public key that belongs to this secret key."""
        return PublicKey(self.identity.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """Returns the signature on `data`, 64 bytes; `data` must state the signature's purpose."""
        return self.identity.sign(data)

    def write(self, path: Path) -> None:
        """Writes the key to a new file durably; only the file's owner may read it.

        Raises:
          FileExistsError: if the file exists.
        """
        secret = _encoded(self.identity.private_bytes_raw())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{self.name} {_SECRET}{secret}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    def __repr__(self) -> str:
        return f"SiteKey({self.name!r}, {self.public})"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decoded(text: str, where: str) -> bytes:
    """Returns the 32 bytes that `text` states: 43 letters of base64url, or 64 hexadecimal digits.

    Raises `UnknownKey` if `text` is neither. `where` ends the first part of the message, for
    example "of the secret".
    """
    expected = f"expected {_LETTERS} letters of base64url, or 64 hexadecimal digits, {where}"
    if len(text) not in (_LETTERS, _DIGITS):
        raise UnknownKey(f"{expected}; found {len(text)} characters: copy the complete line")
    allowed = r"[0-9a-fA-F]*" if len(text) == _DIGITS else r"[A-Za-z0-9_-]*"
    fitting = re.match(allowed, text)
    if fitting and fitting.end() < len(text):
        place = f"character {fitting.end() + 1} of {len(text)}"
        raise UnknownKey(
            f"{expected}; {place} is none of these: compare that character with the original"
        )
    if len(text) == _DIGITS:
        return bytes.fromhex(text)
    raw = base64.urlsafe_b64decode(text + "=")
    if _encoded(raw) != text:  # the last letter has two spare bits
        raise UnknownKey(
            f"{expected}; the last of {_LETTERS} characters cannot end a key: compare that "
            "character with the original"
        )
    return raw


def _without_sign(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] & 0x7F])
