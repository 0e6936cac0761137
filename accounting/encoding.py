"""Dataclasses as JSON objects: one encoder for all that are plain lists of their fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar


class Encoded:
    """A dataclass whose object has a key for each field, by the field's name and in its order.

    `stated_first` and `stated_last` name further attributes of the class that the object states
    before and after its fields. The metadata of a field may change what is
    stated of it: `called`, `UNSTATED`, `UNLESS_EMPTY`.
    """

    stated_first: ClassVar[tuple[str, ...]] = ()
    stated_last: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that `--json`, ledgers and files state."""
        return {
            **{name: encoded(getattr(self, name)) for name in self.stated_first},
            **_fields(self),
            **{name: encoded(getattr(self, name)) for name in self.stated_last},
        }


class Kinded(Encoded):
    """The same with the class's `kind` first, by which it is read again."""

    stated_first = ("kind",)


def called(key: str) -> Mapping[str, Any]:
    """The metadata of a field that its object states under another `key`."""
    return {"key": key}


UNSTATED: Mapping[str, Any] = {"unstated": True}
"""The metadata of a field that its object does not state."""
UNLESS_EMPTY: Mapping[str, Any] = {"unless_empty": True}
"""The metadata of a field that its object states where it is neither 0 nor empty."""


def encoded(value: Any) -> Any:
    """`value` in the types of JSON, as deep as it goes; what is none of them stays."""
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
    """What is stated of the fields of the dataclass `record`."""
    return {
        each.metadata.get("key", each.name): encoded(value)
        for each in fields(record)
        if not each.metadata.get("unstated")
        and ((value := getattr(record, each.name)) or not each.metadata.get("unless_empty"))
    }
