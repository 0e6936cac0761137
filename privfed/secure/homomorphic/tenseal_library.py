"""TenSEAL, an optional dependency, and the form in which it writes vectors."""

from __future__ import annotations

import importlib
from typing import Any

from privfed.errors import Refused


def tenseal() -> Any:
    """The library. Raises `Refused` where it is not installed."""
    try:
        return importlib.import_module("tenseal")
    except ImportError as error:
        raise Refused(
            "secure.protocol bfv and ckks need TenSEAL, which is not installed; "
            'run "pip install tenseal", or use secure.protocol = "masks"'
        ) from error


def varint(number: int) -> bytes:
    """A number as protocol buffers write it."""
    if number < 128:
        return bytes([number])
    return bytes([128 + number % 128]) + varint(number // 128)


def bytes_field(number: int, body: bytes) -> bytes:
    """A field of bytes as protocol buffers write it."""
    return bytes([number << 3 | 2]) + varint(len(body)) + body
