"""Formats text for users and programs: numbers, escaped names, suggestions and JSON.

In JSON, an infinite epsilon is the string "inf" and NaN is null. On a terminal, control characters
and invisible characters are escaped.

Names of files, columns, clients and parts, and the texts of exceptions, are untrusted input.
Unescaped, an escape sequence recolours, moves or overwrites the output, a carriage return hides the
line before it, and direction marks or zero-width characters disguise a name. Everything that
privfed prints is escaped here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from unicodedata import category

from accounting.statement import ceiling as ceiling


def number(value: float | None) -> str:
    """Formats a number with up to ten significant digits; None as a dash, infinity as ∞."""
    if value is None:
        return "—"
    return "∞" if value == math.inf else f"{value:.10g}"


def size_of(count: float) -> str:
    """Formats a number of bytes in units of powers of 1000, such as "1.2 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Formats a duration, given in seconds, as seconds, minutes or hours, such as "1.7 min"."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    if seconds < 6000:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 3600:.2g} h"


def utc(seconds: float) -> str:
    """Returns the time in UTC (ISO 8601) that is `seconds` after 1970; "" for 0."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""


def about_groups(name: str) -> bool:
    """Whether the measure `name` is of one group of examples, or compares groups."""
    apart = ("worst_group_", "group_gap_", "opportunity_gap")
    return name.endswith("]") or name.startswith(apart)


def measure(name: str, value: float) -> str:
    """Formats the `value` of the measure `name`; accuracies, also of groups, are in per cent."""
    of_all = name.partition("[")[0].removeprefix("worst_group_")
    return f"{value:.2%}" if of_all == "accuracy" else f"{value:.4g}"


_KEPT_AS_THEY_ARE = "\n\t"
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that are escaped: control and format characters, undecodable
bytes, line and paragraph separators."""


def visible(text: str) -> str:
    r"""Returns `text` with invisible characters, except newlines and tabs, escaped as in Python.

    >>> print(visible("runs/a\x1b[31m\u202e"))
    runs/a\x1b[31m\u202e
    """
    return _spelt(text, lambda letter: letter.encode("unicode_escape").decode())


def visible_toml(text: str) -> str:
    r"""Returns the TOML document `text` with invisible characters escaped as in TOML strings.

    The result is equivalent, since such characters can occur in strings only.

    >>> print(visible_toml('name = "a\x9b"'))
    name = "a\u009b"
    """
    return _spelt(text, _in_toml)


def _spelt(text: str, spell: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(spell(letter) if _unseen(letter) else letter for letter in text)


def _in_toml(letter: str) -> str:
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _unseen(letter: str) -> bool:
    return category(letter) in _UNSEEN and letter not in _KEPT_AS_THEY_ARE


def nearest(written: str, known: Iterable[str]) -> str | None:
    """Returns the name in `known` closest to `written` by edit distance; None if all are too far.

    Names are too far if their distance is above max(1, longer length // 3), or not below the
    shorter length. Of equally close names, an identical one is preferred, then the shortest, then
    the first in the alphabet.
    """
    similar = [name for name in known if _apart(written, name) <= _allowed(written, name)]
    slips = {name: distance(written, name) for name in similar}
    near = [name for name, n in slips.items() if n <= _allowed(written, name)]
    return min(near, key=lambda name: (slips[name], written != name, len(name), name), default=None)


def distance(name: str, other: str) -> int:
    """Returns the edit distance of two names: the number of edits that change one into the other.

    An edit deletes, adds or changes a letter, or swaps two neighbouring letters.

    Case and the separator of words do not count; the same words in another order count as one edit.
    Optimal string alignment (Damerau 1964), in O(len(name) len(other)).

    >>> distance("momentm", "momentum"), distance("aile", "alie")
    (1, 1)
    >>> distance("mean_area", "Mean area"), distance("perimeter_mean", "mean_perimeter")
    (0, 1)
    """
    first, second = _words(name), _words(other)
    straight = _slips(" ".join(first), " ".join(second))
    return min(straight, 1 + _slips(" ".join(sorted(first)), " ".join(sorted(second))))


def _words(name: str) -> list[str]:
    return re.split(r"[\s_.-]+", name.casefold())


def _apart(name: str, other: str) -> int:
    """Returns a lower bound on the edit distance, computed from the lengths alone."""
    return abs(len(" ".join(_words(name))) - len(" ".join(_words(other))))


def _allowed(name: str, other: str) -> int:
    """Returns the largest distance at which names are close; it is below either name's length."""
    return min(max(1, max(len(name), len(other)) // 3), len(name) - 1, len(other) - 1)


def _slips(name: str, other: str) -> int:
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(name, 1):
        last, before, row = before, row, [i]
        for j, other_letter in enumerate(other, 1):
            least = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other_letter))
            if last and j > 1 and (letter, name[i - 2]) == (other[j - 2], other_letter):
                least = min(least, last[j - 2] + 1)
            row.append(least)
    return row[-1]


def dump(value: Mapping[str, Any], indent: int | None = None) -> str:
    """Returns `value` as one object of strict JSON: infinities as "inf" or "-inf", NaN as null."""
    text = json.dumps(_strict(value), indent=indent, allow_nan=False)
    return text.replace("\x7f", "\\u007f")  # the one control character that JSON does not escape


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def with_numbers(value: Any) -> Any:
    """Returns a parsed output of `dump` with the strings "inf" and "-inf" as numbers again."""
    if isinstance(value, Mapping):
        return {key: with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    return (
        {"inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
    )
