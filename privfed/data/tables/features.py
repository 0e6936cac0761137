"""The features of a table: declared columns, each scaled from its bounds onto [-1, 1].

Columns of numbers come first, then dates, then a 0 or 1 for each value of each category.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from glob import escape

import numpy as np
import torch

from privfed.core.errors import Refused
from privfed.data.federation import Meaning
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Category, Numbers, Outside, Preprocessing, merged
from privfed.data.tables.cells import CellRules, Words, native_order
from privfed.data.tables.columns import Columns

_ONTO = (-1.0, 1.0)


@dataclass(frozen=True)
class NumberFeature:
    """A column of numbers, which becomes one feature.

    `column` is its name, or the pattern that declares it; `called` is its name in messages. `low`
    and `high` are its bounds, which messages show as `bounds`. `missing` replaces empty cells; if
    it is None, they are refused. `days` marks dates, in days since 1970-01-01.
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
    """A column of words, encoded as one 0/1 feature for each of its `values`.

    `column` is its name, and `called` its name in messages. If `may_be_empty`, an empty cell counts
    as none of the values; otherwise it is refused.
    """

    column: str
    called: str
    values: tuple[str, ...]
    may_be_empty: bool


class DeclaredNames:
    """Looks up columns among `names` by name or pattern; patterns never match names in `taken`."""

    def __init__(self, names: Sequence[str], taken: Collection[str]) -> None:
        self._places = {name: place for place, name in enumerate(names, start=1)}
        self._escaped = {escape(name): name for name in names}
        self._taken = frozenset(taken)

    def matching(self, pattern: str) -> list[str]:
        """Returns the column named `pattern` if there is one, otherwise all names that match it."""
        if pattern in self._places:
            return [pattern]
        alone = self._escaped.get(pattern)  # a quick look-up, for tables of many columns
        fitting = self._places if alone is None else [alone]
        return [n for n in fitting if n not in self._taken and fnmatchcase(n, pattern)]

    def public_name(self, name: str, pattern: str) -> str:
        """Returns a column's name for messages: as declared, or its number (from 1) and pattern."""
        if pattern in (name, escape(name)):
            return repr(name)
        return f"number {self._places[name]} (of {pattern!r})"


def feature_matrix(
    rows: int,
    numbers: Mapping[str, tuple[NumberFeature, np.ndarray]],
    categories: Mapping[str, tuple[CategoryFeature, Words]],
    rules: CellRules,
) -> tuple[torch.Tensor | Mapped, int]:
    """Computes the features of a table.

    A single column of arrays, such as images, is mapped instead of copied. `numbers` and
    `categories` map a column to its declaration and its cells.

    Returns:
      The features `[rows, features]`, and the number of values that were clipped or are undeclared
      words.

    Raises:
      Refused: if `rules` refuses a cell.
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


def outside_bounds(numbers: Mapping[str, NumberFeature], table: Columns) -> tuple[Outside, ...]:
    """Returns one `Outside` for each declared name or pattern in `numbers`, over all rows."""
    declared: dict[tuple[str, float, float], list[np.ndarray]] = {}
    for name, feature in numbers.items():
        key = (feature.column, feature.low, feature.high)
        declared.setdefault(key, []).append(table.numbers[name].reshape(-1))
    beyond = []
    for (column, low, high), held in declared.items():
        values = np.concatenate(held)
        share = float(((values < low) | (values > high)).mean())
        extent = np.append(values[~np.isnan(values)], [low, high])
        beyond.append(
            Outside(
                column,
                (low, high),
                share,
                (float(extent.min()), float(extent.max())),
            )
        )
    return tuple(beyond)


def _count_outside(feature: NumberFeature, array: np.ndarray, rules: CellRules) -> int:
    bounds, shown = (feature.low, feature.high), feature.bounds
    return rules.outside_bounds(array, feature.called, bounds, shown, feature.missing is not None)


def scaled(numbers: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns `numbers` clipped to [low, high] and scaled onto [-1, 1]."""
    start, end = _ONTO
    return (numbers.clip(low, high) - low) * ((end - start) / (high - low)) + start


def declared_preprocessing(
    x: torch.Tensor | Mapped,
    numbers: Mapping[str, tuple[NumberFeature, np.ndarray]],
    categories: Mapping[str, tuple[CategoryFeature, Words]],
    clips: bool,
) -> Preprocessing:
    """Returns the preprocessing by which `feature_matrix` computed `x`."""
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
    """Computes the features `[N, features]` of raw numbers and category codes.

    Args:
      numbers: raw numbers, shape [N, *], in the order of `how`.
      codes: index of each category's value, shape [N, categories]; others count as no category.
      how: the preprocessing.
      rules: treatment of cells.

    Raises:
      TypeError: if `how` is of an array instead of columns.
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
        raise TypeError("the preprocessing is of an array; expected columns")
    return x


def present_labels(labels: Sequence[str], names: Sequence[str], called: str) -> list[str]:
    """Returns `labels`, or [] if none of these columns is among `names`.

    Raises `Refused` if only some are among `names`.
    """
    present = [label for label in labels if label in names]
    if 0 < len(present) < len(labels):
        raise Refused(
            f"data.label: {called} has {len(present)} of the {len(labels)} label columns; expected "
            "all of them, or none"
        )
    return present


def has_labels(table: Columns, labels: Sequence[str], called: str) -> bool:
    """Whether rows have labels: no cell is empty. If only some are empty, raises `Refused`."""
    empty = np.stack([_empty(table, label) for label in labels], 1)
    if empty.all():
        return False
    if empty.any():
        row = int(empty.any(1).argmax()) + 1
        raise Refused(
            f"data: {called}, row {row}: the label is empty, but other rows have labels; give "
            "every row a label, or leave out all labels"
        )
    return True


def _empty(table: Columns, label: str) -> np.ndarray:
    """Returns the mask `[N]` of rows with an empty cell in the column `label`."""
    if label in table.words:
        return table.words[label].codes < 0
    numbers = table.numbers[label]
    empty: np.ndarray = np.isnan(numbers.reshape(len(numbers), -1)).all(1)
    return empty


def with_placeholder_labels(
    table: Columns, words: dict[str, str], numbers: dict[str, float]
) -> Columns:
    """Returns `table` with a label column of one value for each name in `words` and `numbers`."""
    codes = np.zeros(table.rows, dtype=np.int64)
    return replace(
        table,
        words={**table.words, **{name: Words(codes, [word]) for name, word in words.items()}},
        numbers={
            **table.numbers,
            **{name: np.full(table.rows, number) for name, number in numbers.items()},
        },
    )


@dataclass(frozen=True)
class EncodedLabels:
    """Labels `y` `[N, *]`, their number of classes (or of label columns), and their meaning.

    `clipped` is the number of labels that were clipped to their bounds.
    """

    y: torch.Tensor
    classes: int
    meaning: Meaning
    clipped: int = 0


@dataclass(frozen=True)
class LabelDeclaration:
    """The label as the configuration declares it: its columns, and its classes or bounds.

    If `single`, there is one column, with exactly one of `values` (the classes by name), `classes`
    (integers from 0) and `bounds` (of a number to predict). Otherwise each column contains 0 and 1.
    """

    columns: Sequence[str]
    single: bool
    values: list[str]
    classes: int
    bounds: list[float]

    def refuse_contradictions(self) -> None:
        """Raises `ValueError` if the keys contradict each other, or declare a single class."""
        kinds = (bool(self.values), bool(self.classes), bool(self.bounds))
        if self.single and sum(kinds) != 1:
            raise ValueError(
                f"labels is {self.values}, classes is {self.classes} and label_bounds is "
                f"{self.bounds}, but exactly one must be set; set labels (the label's values), "
                "classes (integers from 0) or label_bounds (a number to predict)"
            )
        if not self.single and (any(kinds) or len(set(self.columns)) < 2):
            raise ValueError(
                "label is a list of columns that hold 0 or 1 each; name two or more columns, and "
                "remove labels, classes and label_bounds"
            )
        if len(self.values) == 1 or self.classes == 1:
            raise ValueError("the label has one class; expected two or more classes")

    def encoded(self, table: Columns, rules: CellRules) -> EncodedLabels:
        """Returns the labels of `table`. Raises `Refused` if a cell is not as declared."""
        if not self.single:
            columns = [
                rules.binary_labels(table.numbers[name], repr(name)) for name in self.columns
            ]
            y = torch.from_numpy(np.stack(columns, 1).astype(np.float32))
            return EncodedLabels(y, len(columns), Meaning(tuple(self.columns)))
        (column,) = self.columns
        called = repr(column)
        if self.values:
            codes = rules.named_classes(table.words[column], called, self.values)
            return EncodedLabels(
                torch.from_numpy(codes), len(self.values), Meaning(tuple(self.values))
            )
        numbers = rules.label_numbers(table.numbers[column], called)
        if self.classes:
            classes = rules.numbered_classes(numbers, called, self.classes)
            return EncodedLabels(torch.from_numpy(classes), self.classes, Meaning())
        low, high = self.bounds
        clipped = rules.outside_bounds(numbers, called, (low, high), f"[{low:g}, {high:g}]")
        y = torch.from_numpy(scaled(numbers, low, high).astype(np.float32)).unsqueeze(1)
        return EncodedLabels(y, 1, Meaning(scale=(high - low) / 2, shift=(high + low) / 2), clipped)

    def with_placeholders(self, table: Columns) -> Columns:
        """Returns `table` with placeholder labels: the first value, the lower bound, or 0."""
        if self.values:
            return with_placeholder_labels(table, dict.fromkeys(self.columns, self.values[0]), {})
        number = self.bounds[0] if self.bounds else 0.0
        return with_placeholder_labels(table, {}, dict.fromkeys(self.columns, number))
