"""The hash of everything that the parties of a secure sum have to agree on before it begins."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from pydantic import BaseModel

PROTOCOL = 2
"""The version of messages and of what they mean; parties of other versions are refused."""


def agreement(**facts: Any) -> bytes:
    """SHA-256 `[32]` of `facts` by name: frozen dataclasses, parts, numbers, texts and None.

    Two parties that differ in one of them (a layer's variance, a threshold, a step, a clip), or in
    the version, have different hashes, and so cannot complete a sum together. Equal numbers have
    one form. Raises `TypeError` for a value that has none.
    """
    text = json.dumps({"version": PROTOCOL, "facts": _plain(facts)}, sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def _plain(value: Any) -> Any:
    """The form that is hashed: with the class's name, since equal fields may differ in meaning."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, int | float):
        return {"number": str(Fraction(value)) if math.isfinite(value) else str(float(value))}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, BaseModel):
        return {
            type(value).__name__: _plain(
                {name: getattr(value, name) for name in type(value).model_fields}
            )
        }
    if is_dataclass(value) and not isinstance(value, type):
        return {
            type(value).__name__: _plain(
                {one.name: getattr(value, one.name) for one in fields(value)}
            )
        }
    raise TypeError(f"{value!r} has no form that two parties could compare")
