"""The hash of everything that the parties of a secure sum have to agree on before it begins."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction

import numpy as np

PROTOCOL = 4
"""The version of messages and of what they mean; parties of other versions are refused."""


def agreement(**facts: object) -> bytes:
    """SHA-256 `[32]` of `facts` by name: frozen dataclasses, parts, tuples, numbers, texts, None.

    Two parties that differ in one of them (a layer's variance, a threshold, a step, a clip), or in
    the version, have different hashes, and so cannot complete a sum together. Equal numbers have
    one form; other values that differ, or are of different classes, have different ones. Raises
    `TypeError` for a value that has none.
    """
    text = json.dumps({"version": PROTOCOL, "facts": _plain(facts)}, sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def _plain(value: object) -> object:
    """The form that is hashed: what is no text, truth or None is a list, tagged by its kind."""
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
    if isinstance(declared, dict):  # a pydantic model's; whoever has none starts without pydantic
        return _instance(value, declared)
    if is_dataclass(value) and not isinstance(value, type):
        if not value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise TypeError(
                f"a {type(value).__qualname__} may change after two parties compared it"
            )
        return _instance(value, [field.name for field in fields(value)])
    raise TypeError(f"a {type(value).__qualname__} has no form that two parties could compare")


def _instance(value: object, names: Iterable[str]) -> object:
    """The form of an instance, with its class's full name: equal fields may differ in meaning."""
    kind = type(value)
    values = {name: getattr(value, name) for name in names}
    return ["instance", kind.__module__, kind.__qualname__, _plain(values)]
