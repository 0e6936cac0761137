"""JSON as privfed writes it: an infinite epsilon is the string "inf", and NaN is null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dump(value: Mapping[str, Any], indent: int | None = None) -> str:
    """One object of strict JSON."""
    text = json.dumps(_strict(value), indent=indent, allow_nan=False)
    return text.replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def with_numbers(value: Any) -> Any:
    """What `dump` wrote and a parser read, with infinite numbers as numbers again."""
    if isinstance(value, Mapping):
        return {key: with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    return (
        {"inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
    )
