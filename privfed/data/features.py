"""What a model sees of a table: declared columns, each scaled from its bounds onto [-1, 1].

Columns of numbers come first, then dates, then a 0 or 1 for each value of each category.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape

import numpy as np
import torch

from privfed.data.cells import Rules, native
from privfed.data.words import Words
from privfed.mapped import Mapped

_ONTO = (-1.0, 1.0)


@dataclass(frozen=True)
class Feature:
    """A column of numbers: what messages call it, its bounds, what an empty cell counts as.

    `missing` None refuses empty cells; `bounds` are shown as they were declared.
    """

    called: str
    low: float
    high: float
    missing: float | None
    bounds: str


@dataclass(frozen=True)
class Category:
    """A column of words: what messages call it, its values, whether a cell may be empty."""

    called: str
    values: Sequence[object]
    may_be_empty: bool


def matching(pattern: str, names: Sequence[str], taken: Iterable[str]) -> list[str]:
    """The columns that `pattern` means: the one so called, else those it fits but for `taken`."""
    if pattern in names:
        return [pattern]
    return [name for name in names if fnmatchcase(name, pattern) and name not in {*taken}]


def called(name: str, pattern: str, names: Sequence[str]) -> str:
    """What messages call a column: by what was declared, and its place, where that is a pattern."""
    if pattern in (name, escape(name)):
        return repr(name)
    return f"number {names.index(name) + 1} (of {pattern!r})"


def inputs(
    rows: int,
    numbers: Mapping[str, tuple[Feature, np.ndarray]],
    categories: Mapping[str, tuple[Category, Words]],
    rules: Rules,
) -> tuple[torch.Tensor | Mapped, int]:
    """X `[rows, features]`, and how many values were clipped or are no declared category.

    One column of arrays alone (images) stays in its file.
    """
    arrays = [(feature, array) for feature, array in numbers.values()]
    if len(arrays) == 1 and arrays[0][1].ndim > 1 and not categories:
        return _mapped(*arrays[0], rules)
    width = sum(int(np.prod(array.shape[1:])) for _, array in arrays)
    width += sum(len(category.values) for category, _ in categories.values())
    x = np.zeros((rows, width), dtype=np.float32)
    at = count = 0
    for feature, array in arrays:
        column = array.reshape(rows, -1)
        count += _beyond(feature, column, rules)
        filled = np.where(np.isnan(column), feature.missing or 0.0, column)
        x[:, at : at + column.shape[1]] = scaled(filled, feature.low, feature.high)
        at += column.shape[1]
    for category, words in categories.values():
        codes, unknown = rules.category(
            words, category.called, category.values, category.may_be_empty
        )
        count += unknown
        known = np.flatnonzero(codes >= 0)
        x[known, at + codes[known]] = 1.0
        at += len(category.values)
    return torch.from_numpy(x), count


def _mapped(feature: Feature, array: np.ndarray, rules: Rules) -> tuple[Mapped, int]:
    count = _beyond(feature, array, rules)
    store, rows = torch.from_numpy(native(array)), torch.arange(len(array))
    return Mapped(store, rows, (feature.low, feature.high), _ONTO, feature.missing), count


def _beyond(feature: Feature, array: np.ndarray, rules: Rules) -> int:
    bounds, shown = (feature.low, feature.high), feature.bounds
    return rules.beyond(array, feature.called, bounds, shown, feature.missing is not None)


def scaled(numbers: np.ndarray, low: float, high: float) -> np.ndarray:
    """From [low, high], clipped, onto [-1, 1]."""
    start, end = _ONTO
    return (numbers.clip(low, high) - low) * ((end - start) / (high - low)) + start
