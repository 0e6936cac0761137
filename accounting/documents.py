"""JSON and TOML of files that anybody may have written, parsed or refused by a `ValueError`.

Parsers recurse, and so does what walks over what they return: a few hundred brackets end either in
a RecursionError, which nobody expects of bad input. Nothing of ours is nested nearly as deep.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from typing import Any

DEEPEST = 100
"""How deep lists and tables may lie in each other."""


def from_json(text: str | bytes) -> Any:
    """The value of the JSON document `text`. Raises `ValueError` where it is none, or too deep."""
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def from_toml(text: str) -> dict[str, Any]:
    """The table of the TOML document `text`. Raises `ValueError` where it is none, or too deep."""
    try:
        table = tomllib.loads(text)
        _shallow(table)
    except RecursionError:
        raise _too_deep() from None
    return table


def _shallow(value: Any) -> Any:
    """`value`, once all its levels were counted. Raises `ValueError` where they are too many."""
    level: Iterable[Any] = [value]
    for _ in range(DEEPEST + 1):
        holders = [outer for outer in level if isinstance(outer, dict | list)]
        if not holders:
            return value
        level = [item for holder in holders for item in _items(holder)]
    raise _too_deep()


def _items(holder: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return holder.values() if isinstance(holder, dict) else holder


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEEPEST} levels deep")
