"""Hashes of the facts on which the parties of a secure sum have to agree."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction

import numpy as np

PROTOCOL = 4
"""Version of the messages and their semantics; parties of other versions are refused."""


def agreement(**facts: object) -> bytes:
    """Returns the SHA-256 hash `[32]` of the named values `facts`.

    Two parties that differ in one value (a layer's variance, a threshold, a step, a clipping norm)
    or in the version have different hashes. They cannot complete a sum together. Equal numbers have
    equal hashes, whatever their types. Instances of different classes have different hashes, even
    if their fields are equal.

    Args:
      **facts: frozen dataclasses, parts (pydantic models), mappings, tuples, numbers, booleans,
        bytes, texts or None.

    Raises:
      TypeError: for a value of another type, at any depth.
    """
    text = json.dumps({"version": PROTOCOL, "facts": _plain(facts)}, sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def _plain(value: object) -> object:
    """Returns `value` as the JSON data that is hashed.

    Texts, booleans and None are unchanged. All else becomes a list that begins with a tag.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, int | float):
        return ["number", str(Fraction(value)) if math.isfinite(value) else str(float(value))]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, tuple):
        return ["tuple", *map(_plain, value)]
    if isinstance(value, Mapping):
        pairs = ([_plain(key), _plain(item)] for key, item in value.items())
        return ["mapping", *sorted(pairs, key=json.dumps)]
    declared = getattr(type(value), "model_fields", None)
    if isinstance(declared, dict):  # a pydantic model, found without importing pydantic
        return _instance(value, declared)
    if is_dataclass(value) and not isinstance(value, type):
        if not value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise TypeError(
                f"a {type(value).__qualname__} may change after two parties compared it; make its "
                "dataclass frozen"
            )
        return _instance(value, [field.name for field in fields(value)])
    raise TypeError(f"a {type(value).__qualname__} has no form that two parties could compare")


def _instance(value: object, names: Iterable[str]) -> object:
    """Returns the JSON data that is hashed for an instance: its class, and its fields `names`.

    The class is included because equal fields may differ in meaning.
    """
    kind = type(value)
    values = {name: getattr(value, name) for name in names}
    return ["instance", kind.__module__, kind.__qualname__, _plain(values)]
