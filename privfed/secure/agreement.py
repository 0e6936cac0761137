"""The hash of everything that the parties of a secure sum have to agree on before it begins."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, is_dataclass
from typing import Any

from pydantic import BaseModel

PROTOCOL = 2
"""The version of messages and of what they mean: parties of other versions refuse each other."""


def agreement(**facts: Any) -> bytes:
    """SHA-256 `[32]` of `facts` by name: frozen dataclasses, parts, numbers, texts and None.

    Two parties that differ in one of them (a layer's variance, a threshold, a step, a clip) have
    different hashes, and so cannot complete a sum together. Raises `TypeError` for a value that
    has no one form.
    """
    text = json.dumps({"protocol": PROTOCOL, **facts}, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).digest()


def _plain(value: Any) -> Any:
    """The form that is hashed: the class's name, since equal fields may mean different things."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__, **asdict(value)}
    if isinstance(value, BaseModel):
        return {"is": type(value).__name__, **value.model_dump()}
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{value!r} has no form that two parties could compare")
