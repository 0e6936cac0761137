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

from privfed.data import preprocessing as public
from privfed.data.mapped import Mapped
from privfed.data.preprocessing import Numbers, Preprocessing, merged
from privfed.data.tables.cells import Rules, native
from privfed.data.tables.words import Words

_ONTO = (-1.0, 1.0)


@dataclass(frozen=True)
class Feature:
    """A column of numbers: what declares it and what messages call it, its bounds, and what an
    empty cell counts as.

    `column` is its name, or the pattern that means it. `missing` None refuses empty cells; `bounds`
    are shown as they were declared. `days`: of a date, since the first of 1970.
    """

    column: str
    called: str
    low: float
    high: float
    missing: float | None
    bounds: str
    days: bool = False


@dataclass(frozen=True)
class Category:
    """A column of words: its name, what messages call it, its values, if a cell may be empty."""

    column: str
    called: str
    values: tuple[str, ...]
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


def preprocessing(
    x: torch.Tensor | Mapped,
    numbers: Mapping[str, tuple[Feature, np.ndarray]],
    categories: Mapping[str, tuple[Category, Words]],
    clips: bool,
) -> Preprocessing:
    """What `inputs` did to make `x`, as it is declared."""
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
            public.Category(
                column=category.column, values=category.values, lacks=category.may_be_empty
            )
            for category, _ in categories.values()
        ),
        onto=_ONTO,
        shape=tuple(x.shape[1:]),
        clips=clips,
    )


def prepared(
    numbers: np.ndarray, codes: np.ndarray, how: Preprocessing, rules: Rules
) -> torch.Tensor:
    """X of rows of raw `numbers` `[N, *]` and `codes` `[N, categories]`, none of which is refused.

    Raises `TypeError` where `how` takes an array and no columns.
    """
    columns: dict[str, tuple[Feature, np.ndarray]] = {}
    each = (declared for declared in how.numbers for _ in range(declared.count))
    for declared, column in zip(each, numbers.T, strict=True):
        name = f"number {len(columns) + 1}"
        feature = Feature(name, name, *declared.bounds, declared.missing or 0.0, "")
        columns[name] = feature, column
    categories = {}
    for category, code in zip(how.categories, codes.T, strict=True):
        known = (code >= 0) & (code < len(category.values))
        words = Words(np.where(known, code, -1), [*category.values])
        categories[category.column] = Category("", "", category.values, True), words
    x, _ = inputs(len(numbers), columns, categories, rules)
    if isinstance(x, Mapped):
        raise TypeError("several columns are no array")
    return x
