"""Which columns a description asks for: those that a run file declares, and others by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from privfed.errors import Refused

_OF_TABLE = {
    *("path", "client", "site", "test_path"),
    *("delimiter", "decimal", "encoding", "missing_words"),
}
"""Keys of [data] that say where a table lies and how it is written."""
_ESCAPED, _PATTERN = re.compile(r"\[([*?[])\]"), re.compile(r"[*?[]")


def source_asked(data: Mapping[str, Any], others: Iterable[str]) -> dict[str, Any]:
    """Keys of a `described_table` from those of a run file's [data]. Raises `Refused`.

    Of columns by the names `others` nothing is known, unless they are declared as well.
    """
    values = dict(_by_column(data, "categories"))
    ranges = {_plain_name(name): each for name, each in _by_column(data, "features").items()}
    dates = dict(_by_column(data, "dates"))
    label = data.get("label")
    if isinstance(label, str):
        if data.get("labels"):
            values[label] = data["labels"]
        elif data.get("classes"):
            values[label] = [*range(_class_count(data["classes"]))]
        elif data.get("label_bounds"):
            ranges[label] = data["label_bounds"]
    declared = {*values, *ranges, *dates}
    return {
        **{key: data[key] for key in _OF_TABLE if key in data},
        "columns": [name for name in dict.fromkeys(others) if name not in declared],
        "ranges": ranges,
        "dates": dates,
        "values": values,
    }


def _by_column(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What is declared by column. Raises `Refused` for anything else."""
    stated = data.get(key, {})
    if not isinstance(stated, Mapping):
        raise Refused(
            f"data.{key} is {stated!r}; expected a section [data.{key}]", key=f"data.{key}"
        )
    return stated


def _class_count(stated: object) -> int:
    """How many classes are declared. Raises `Refused` for what is no whole number, as names are."""
    if not isinstance(stated, int) or isinstance(stated, bool) or stated < 2:
        raise Refused(
            f"data.classes is {stated!r}; expected how many there are, a whole number above 1, for "
            "labels that are numbers from 0 (data.labels lists classes by name)",
            key="data.classes",
        )
    return stated


def _plain_name(pattern: str) -> str:
    """The one column that a key of [data.features] names. Raises `Refused` for a pattern."""
    if _PATTERN.search(_ESCAPED.sub("", pattern)):
        raise Refused(
            f"data.features: {pattern!r} is a pattern; a description asks for columns by name, as "
            "how many there are is to be public: name each column, or leave it out",
            key="data.features",
        )
    return _ESCAPED.sub(r"\1", pattern)
