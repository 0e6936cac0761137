"""The features of a table: declared columns, each scaled from its bounds onto [-1, 1].

Columns of numbers come first, then dates, then a 0 or 1 for each value of each category.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape

import numpy as np
import torch

from privfed.data.mapped import Mapped
from privfed.data.preprocessing import Category, Numbers, Preprocessing, merged
from privfed.data.tables.cells import CellRules, Words, native_order

_ONTO = (-1.0, 1.0)


@dataclass(frozen=True)
class NumberFeature:
    """A column of numbers, which become one feature.

    `column` is its name, or the pattern that declares it, and `called` what messages call it. Its
    bounds are `low` and `high`, and `bounds` shows them as they were declared. An empty cell counts
    as `missing` (None: it is refused). `days` says that numbers are dates, in days since the first
    of 1970.
    """

    column: str
    called: str
    low: float
    high: float
    missing: float | None
    bounds: str
    days: bool = False


@dataclass(frozen=True)
class CategoryFeature:
    """A column of words, which become one feature 0 or 1 for each of its `values`.

    `column` is its name, and `called` what messages call it.
    """

    column: str
    called: str
    values: tuple[str, ...]
    may_be_empty: bool


def matching_columns(pattern: str, names: Sequence[str], taken: Iterable[str]) -> list[str]:
    """The columns that `pattern` declares: the one of that name, else all it fits but `taken`."""
    if pattern in names:
        return [pattern]
    return [name for name in names if fnmatchcase(name, pattern) and name not in {*taken}]


def public_name(name: str, pattern: str, names: Sequence[str]) -> str:
    """What messages call a column: what was declared, with its place where that is a pattern."""
    if pattern in (name, escape(name)):
        return repr(name)
    return f"number {names.index(name) + 1} (of {pattern!r})"


def feature_matrix(
    rows: int,
    numbers: Mapping[str, tuple[NumberFeature, np.ndarray]],
    categories: Mapping[str, tuple[CategoryFeature, Words]],
    rules: CellRules,
) -> tuple[torch.Tensor | Mapped, int]:
    """The features `[rows, features]`, and how many values were clipped or are no category.

    One column of arrays alone (images) is not copied and stays in its file.
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
        count += _count_outside(feature, column, rules)
        filled = np.where(np.isnan(column), feature.missing or 0.0, column)
        x[:, at : at + column.shape[1]] = scaled(filled, feature.low, feature.high)
        at += column.shape[1]
    for category, words in categories.values():
        codes, unknown = rules.category_codes(
            words, category.called, category.values, category.may_be_empty
        )
        count += unknown
        known = np.flatnonzero(codes >= 0)
        x[known, at + codes[known]] = 1.0
        at += len(category.values)
    return torch.from_numpy(x), count


def _mapped(feature: NumberFeature, array: np.ndarray, rules: CellRules) -> tuple[Mapped, int]:
    count = _count_outside(feature, array, rules)
    store, rows = torch.from_numpy(native_order(array)), torch.arange(len(array))
    return Mapped(store, rows, (feature.low, feature.high), _ONTO, feature.missing), count


def _count_outside(feature: NumberFeature, array: np.ndarray, rules: CellRules) -> int:
    bounds, shown = (feature.low, feature.high), feature.bounds
    return rules.outside_bounds(array, feature.called, bounds, shown, feature.missing is not None)


def scaled(numbers: np.ndarray, low: float, high: float) -> np.ndarray:
    """`numbers` clipped to [low, high] and scaled from there onto [-1, 1]."""
    start, end = _ONTO
    return (numbers.clip(low, high) - low) * ((end - start) / (high - low)) + start


def declared_preprocessing(
    x: torch.Tensor | Mapped,
    numbers: Mapping[str, tuple[NumberFeature, np.ndarray]],
    categories: Mapping[str, tuple[CategoryFeature, Words]],
    clips: bool,
) -> Preprocessing:
    """What `feature_matrix` did to make `x`, as it is declared."""
    features = [(feature, int(np.prod(array.shape[1:]))) for feature, array in numbers.values()]
    if isinstance(x, Mapped):
        return Preprocessing.of_mapped(features[0][0].column, x, clips)
    return Preprocessing(
        numbers=merged(
            Numbers(
                column=feature.column,
                count=count,
                bounds=(feature.low, feature.high),
                missing=feature.missing,
                days=feature.days,
            )
            for feature, count in features
        ),
        categories=tuple(
            Category(column=category.column, values=category.values, lacks=category.may_be_empty)
            for category, _ in categories.values()
        ),
        onto=_ONTO,
        shape=tuple(x.shape[1:]),
        clips=clips,
    )


def prepared_rows(
    numbers: np.ndarray, codes: np.ndarray, how: Preprocessing, rules: CellRules
) -> torch.Tensor:
    """The features `[N, features]` of raw `numbers` `[N, *]` and `codes` `[N, categories]`.

    Raises `TypeError` where `how` takes an array and no columns.
    """
    columns: dict[str, tuple[NumberFeature, np.ndarray]] = {}
    declarations = (declared for declared in how.numbers for _ in range(declared.count))
    for declared, column in zip(declarations, numbers.T, strict=True):
        name = f"number {len(columns) + 1}"
        feature = NumberFeature(name, name, *declared.bounds, declared.missing or 0.0, "")
        columns[name] = feature, column
    categories = {}
    for category, code in zip(how.categories, codes.T, strict=True):
        known = (code >= 0) & (code < len(category.values))
        words = Words(np.where(known, code, -1), [*category.values])
        categories[category.column] = CategoryFeature("", "", category.values, True), words
    x, _ = feature_matrix(len(numbers), columns, categories, rules)
    if isinstance(x, Mapped):
        raise TypeError("several columns are no array")
    return x
