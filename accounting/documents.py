"""Parsing of untrusted JSON and TOML documents; invalid ones raise `ValueError`.

Parsers are recursive, as is code that processes their results: a few hundred nested brackets cause
a RecursionError, which callers do not expect for invalid input. The project's own documents are far
less nested.

`Encoded` converts dataclasses to JSON objects, field by field.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

DEEPEST = 100
"""Largest nesting depth of lists and tables."""


def from_json(text: str | bytes, **options: Any) -> Any:
    """Returns the value of the JSON `text`. Raises `ValueError` if invalid or nested too deeply.

    `options` are those of `json.loads`.
    """
    try:
        return _shallow(json.loads(text, **options))
    except RecursionError:
        raise _too_deep() from None


def from_toml(text: str) -> dict[str, Any]:
    """Returns the table of the TOML `text`. Raises `ValueError` if invalid or nested too deeply."""
    try:
        table = tomllib.loads(text)
        _shallow(table)
    except RecursionError:
        raise _too_deep() from None
    return table


def _shallow(value: Any) -> Any:
    """Returns `value`. Raises `ValueError` if it is nested too deeply."""
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
    return ValueError(f"the document is nested more than {DEEPEST} levels deep")


_INFINITE = "inf"
"""The word for an infinite budget in a ledger, since strict JSON has no infinite number."""


def written(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `stated` with values of plus infinity, except nested ones, replaced by "inf"."""
    return {key: _INFINITE if value == math.inf else value for key, value in stated.items()}


def budget_value(budget: Any) -> Any:
    """Returns `budget` as it was before `written`: "inf" becomes infinity."""
    return math.inf if budget == _INFINITE else budget


class Encoded:
    """Base of dataclasses whose JSON object has a key for each field, in the order of fields.

    `stated_first` and `stated_last` name further attributes that the object has before and after
    its fields. The metadata of a field may change its entry: another key (`called`), no entry
    (`UNSTATED`), or no entry if the value is 0 or empty (`UNLESS_EMPTY`).
    """

    stated_first: ClassVar[tuple[str, ...]] = ()
    stated_last: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `--json`, ledgers and files state."""
        return {
            **{name: encoded(getattr(self, name)) for name in self.stated_first},
            **_fields(self),
            **{name: encoded(getattr(self, name)) for name in self.stated_last},
        }


class Kinded(Encoded):
    """Base of `Encoded` dataclasses whose JSON object begins with `kind`, naming the class."""

    stated_first = ("kind",)


def called(key: str) -> Mapping[str, Any]:
    """Returns the metadata of a field that has another `key` in its JSON object."""
    return {"key": key}


UNSTATED: Mapping[str, Any] = {"unstated": True}
"""Metadata of a field that is not in the JSON object."""
UNLESS_EMPTY: Mapping[str, Any] = {"unless_empty": True}
"""Metadata of a field that is in the JSON object unless its value is 0 or empty."""


def encoded(value: Any) -> Any:
    """Returns `value` with all its values converted to JSON types, recursively.

    Objects are converted by their `to_json`, dataclasses and mappings to dictionaries, lists and
    tuples to lists, paths to strings; all other values are unchanged.
    """
    if hasattr(value, "to_json") and not isinstance(value, type):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _fields(record: Any) -> dict[str, Any]:
    """Returns the JSON entries of `record`'s fields, subject to their metadata (`Encoded`)."""
    return {
        each.metadata.get("key", each.name): encoded(value)
        for each in fields(record)
        if not each.metadata.get("unstated")
        and ((value := getattr(record, each.name)) or not each.metadata.get("unless_empty"))
    }
