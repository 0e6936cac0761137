"""A table of the user's own: CSV, Parquet or npz, with declared columns, bounds and classes.

All that shapes what a model sees is declared in the configuration, or comes with a public sample
(`privfed declare`): to find a column's range, its categories or the classes in private data would
be a release of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from privfed.data.columns import Columns, Words, header, read
from privfed.errors import Refused
from privfed.federation import Examples, Meaning
from privfed.mapped import Mapped
from privfed.parts import Part
from privfed.streams import Streams

Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]
_ONTO = (-1.0, 1.0)


class Table(Part):
    """A table of your own. x `[N, features]` in [-1, 1]; an npz may hold images `[N, *shape]`.

    `features` maps columns (or patterns, "pixel*") to their bounds [low, high], from which they are
    scaled; `categories` maps columns to their values, one feature 0 or 1 each. `outside` says what
    becomes of a number beyond its bounds or a value that is not declared ("clip": the bound, or no
    category; "refuse"), `missing` of an empty cell ("refuse", or the number to take; no category).

    `label` is one column, with `labels` (its values by name), `classes` (whole numbers from 0) or
    `label_bounds` (a number to predict); or several columns of 0 and 1. `client` names the column
    that says whose a row is; without it, partition the rows by "iid" or another simulation.
    `test_path` is a public table with the same columns.
    """

    path: str
    label: str | list[str]
    features: dict[str, Bounds] = {}
    categories: dict[str, list[str | int | bool]] = {}
    client: str = ""
    labels: list[str] = []
    classes: int = Field(0, ge=0)
    label_bounds: list[float] = Field([], max_length=2)
    outside: Literal["clip", "refuse"] = "clip"
    missing: Literal["refuse"] | float = "refuse"
    delimiter: str = Field(",", min_length=1, max_length=1)
    test_path: str = ""
    natural_partition: ClassVar[bool] = True
    found: ClassVar[bool] = True

    @model_validator(mode="after")
    def _whole(self) -> Table:
        if not self.features and not self.categories:
            raise ValueError("name at least one column in features or categories")
        for name, (low, high) in [*self.features.items(), *self._label_range()]:
            if not low < high:
                raise ValueError(
                    f"the bounds of {name!r} are [{low:g}, {high:g}]; expected [low, high]"
                )
        kinds = (bool(self.labels), bool(self.classes), bool(self.label_bounds))
        if isinstance(self.label, str) and sum(kinds) != 1:
            raise ValueError(
                "declare what the label is, by exactly one of labels (its values by name), classes "
                "(whole numbers from 0) and label_bounds (a number to predict)"
            )
        if not isinstance(self.label, str) and (any(kinds) or len(self.label) < 2):
            raise ValueError("several label columns are 0 or 1 each: two or more, and nothing else")
        if len(self.labels) == 1 or self.classes == 1:
            raise ValueError("one class leaves nothing to learn; expected two or more")
        return self

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(Path(self.path), self.client)

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        if not self.test_path:
            return None
        path = Path(self.test_path)
        there = self.client in header(path, self.delimiter)
        return self._load(path, self.client if there else "")

    def _label_range(self) -> list[tuple[str, list[float]]]:
        return [("label_bounds", self.label_bounds)] if self.label_bounds else []

    def _load(self, path: Path, client: str) -> Examples:
        names = header(path, self.delimiter)
        bounds = self._feature_columns(names, path)
        labels = [self.label] if isinstance(self.label, str) else self.label
        for key, column in [("client", client), *(("label", label) for label in labels)]:
            if column and column not in names:
                raise _no_column(key, column, names, path)
        by_name = labels if self.labels else []
        found = read(
            path,
            numbers=[*bounds, *(label for label in labels if label not in by_name)],
            words=list(dict.fromkeys([*self.categories, *by_name, *([client] if client else [])])),
            delimiter=self.delimiter,
        )
        y, classes, meaning = self._labels(found, path)
        x, counts = self._features(found, bounds, path)
        examples = Examples(x, y, classes, meaning=meaning, counts=counts)
        if not client:
            return examples
        owners, clients = _owners(found.words[client], client, path)
        return replace(examples, owners=owners, clients=clients)

    def _feature_columns(self, names: list[str], path: Path) -> dict[str, tuple[float, float]]:
        """Each numeric feature column with its bounds, in the file's order within a pattern."""
        found: dict[str, tuple[float, float]] = {}
        for pattern, (low, high) in self.features.items():
            matching = [n for n in names if n == pattern] or [
                n for n in names if fnmatchcase(n, pattern)
            ]
            if not matching:
                raise _no_column("features", pattern, names, path)
            found |= dict.fromkeys(matching, (low, high))
        for column in self.categories:
            if column not in names:
                raise _no_column("categories", column, names, path)
        own = {self.client, *([self.label] if isinstance(self.label, str) else self.label)}
        leaked = sorted(own & {*found, *self.categories})
        if leaked:
            raise Refused(
                f"data.features: {leaked[0]!r} is the label or the client column; a feature that "
                "holds it would give the answer away"
            )
        return found

    def _features(
        self, found: Columns, bounds: dict[str, tuple[float, float]], path: Path
    ) -> tuple[torch.Tensor | Mapped, dict[str, int]]:
        arrays = [found.numbers[name] for name in bounds]
        if len(arrays) == 1 and arrays[0].ndim > 1 and not self.categories:
            ((name, (low, high)),) = bounds.items()
            count = self._check(arrays[0], name, low, high, path)
            missing = None if self.missing == "refuse" else self.missing
            rows = torch.arange(found.rows)
            store = torch.from_numpy(_native(arrays[0]))
            return Mapped(store, rows, (low, high), _ONTO, missing), {"clipped_values": count}
        width = sum(int(np.prod(array.shape[1:])) for array in arrays)
        width += sum(len(values) for values in self.categories.values())
        x = np.zeros((found.rows, width), dtype=np.float32)
        at = count = 0
        for name, (low, high) in bounds.items():
            column = found.numbers[name].reshape(found.rows, -1)
            count += self._check(column, name, low, high, path)
            filled = np.nan_to_num(column, nan=self._filling(), posinf=np.inf, neginf=-np.inf)
            x[:, at : at + column.shape[1]] = (filled.clip(low, high) - low) * (
                2 / (high - low)
            ) - 1
            at += column.shape[1]
        for name, values in self.categories.items():
            codes, unknown = self._category(found.words[name], name, values, path)
            count += unknown
            known = np.flatnonzero(codes >= 0)
            x[known, at + codes[known]] = 1.0
            at += len(values)
        return torch.from_numpy(x), {"clipped_values": count}

    def _filling(self) -> float:
        return 0.0 if self.missing == "refuse" else self.missing

    def _check(self, array: np.ndarray, name: str, low: float, high: float, path: Path) -> int:
        """How many numbers lie outside; read in pieces: a mapped array stays in its file."""
        outside = 0
        step = max(1, 2**22 // max(int(np.prod(array.shape[1:])), 1))
        for start in range(0, len(array), step):
            piece = array[start : start + step].reshape(len(array[start : start + step]), -1)
            empty = np.isnan(piece).any(1)
            if empty.any() and self.missing == "refuse":
                raise Refused(
                    f"data: {path}, row {start + int(empty.argmax()) + 1}: column {name!r} is "
                    "empty; set data.missing to the number to take instead"
                )
            beyond = (piece < low) | (piece > high)
            if beyond.any() and self.outside == "refuse":
                row, column = np.argwhere(beyond)[0]
                raise Refused(
                    f"data: {path}, row {start + row + 1}: column {name!r} is "
                    f"{piece[row, column]:g}, outside its declared bounds [{low:g}, {high:g}]; "
                    'correct them, or set data.outside = "clip"'
                )
            outside += int(beyond.sum())
        return outside

    def _category(
        self, words: Words, name: str, values: Sequence[object], path: Path
    ) -> tuple[np.ndarray, int]:
        """Which of `values` each row holds `[N]` (-1: none), and how many hold another."""
        place = {_as_text(value): n for n, value in enumerate(values)}
        codes = _recoded(words, place)
        empty = words.codes < 0
        if empty.any() and self.missing == "refuse":
            raise Refused(
                f"data: {path}, row {words.first(empty)}: column {name!r} is empty; set "
                "data.missing to a number, and it will count as none of its categories"
            )
        unknown = (codes < 0) & ~empty
        if unknown.any() and self.outside == "refuse":
            row = words.first(unknown)
            raise Refused(
                f"data: {path}, row {row}: column {name!r} is "
                f"{words.values[words.codes[row - 1]]!r}; expected one of {', '.join(place)}, or "
                'set data.outside = "clip"'
            )
        return codes, int(unknown.sum())

    def _labels(self, found: Columns, path: Path) -> tuple[torch.Tensor, int, Meaning]:
        """y, its number of classes or width, and what it means."""
        if not isinstance(self.label, str):
            columns = [_zero_or_one(found.numbers[name], name, path) for name in self.label]
            y = torch.from_numpy(np.stack(columns, 1).astype(np.float32))
            return y, len(columns), Meaning(tuple(self.label))
        if self.labels:
            words = found.words[self.label]
            codes = _recoded(words, {name: n for n, name in enumerate(self.labels)})
            if (codes < 0).any():
                row = words.first(codes < 0)
                code = words.codes[row - 1]
                raise Refused(
                    f"data: {path}, row {row}: the label {self.label!r} is "
                    f"{'empty' if code < 0 else repr(words.values[code])}; expected one of "
                    f"{', '.join(self.labels)} (data.labels)"
                )
            return torch.from_numpy(codes), len(self.labels), Meaning(tuple(self.labels))
        numbers = found.numbers[self.label]
        if numbers.ndim != 1:
            raise Refused(f"data: {path}: the label {self.label!r} has shape {numbers.shape}")
        if self.classes:
            return torch.from_numpy(self._classes(numbers, path)), self.classes, Meaning()
        low, high = self.label_bounds
        empty = np.isnan(numbers)
        if empty.any():
            raise Refused(
                f"data: {path}, row {int(empty.argmax()) + 1}: the label {self.label!r} is empty"
            )
        self._check(numbers, self.label, low, high, path)
        scaled = (numbers.clip(low, high) - low) * (2 / (high - low)) - 1
        meaning = Meaning(scale=(high - low) / 2, shift=(high + low) / 2)
        return torch.from_numpy(scaled.astype(np.float32)).unsqueeze(1), 1, meaning

    def _classes(self, numbers: np.ndarray, path: Path) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            right = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < self.classes)
        if not right.all():
            row = int((~right).argmax())
            raise Refused(
                f"data: {path}, row {row + 1}: the label {self.label!r} is {numbers[row]:g}; "
                f"expected a whole number from 0 to {self.classes - 1} (data.classes)"
            )
        return numbers.astype(np.int64)


def _native(array: np.ndarray) -> np.ndarray:
    """In this machine's byte order, and of a type that PyTorch has."""
    native = array.dtype.newbyteorder("=")
    return array if array.dtype == native else array.astype(native)


def _owners(words: Words, client: str, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    empty = words.codes < 0
    if empty.any():
        raise Refused(
            f"data: {path}, row {words.first(empty)}: the client column {client!r} is empty; every "
            "row has to belong to somebody, or the unit of privacy would be undefined"
        )
    used, owners = np.unique(words.codes, return_inverse=True)
    return owners.astype(np.int64), tuple(words.values[code] for code in used)


def _recoded(words: Words, place: dict[str, int]) -> np.ndarray:
    """Row by row, where the value stands in `place`; -1 for others and for nothing."""
    table = np.array([*(place.get(value, -1) for value in words.values), -1], dtype=np.int64)
    return table[words.codes]


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _zero_or_one(numbers: np.ndarray, name: str, path: Path) -> np.ndarray:
    wrong = ~((numbers == 0) | (numbers == 1))
    if wrong.any():
        row = int(wrong.argmax())
        raise Refused(
            f"data: {path}, row {row + 1}: the label {name!r} is {numbers[row]:g}; expected 0 or 1"
        )
    return numbers


def _no_column(key: str, name: str, names: list[str], path: Path) -> Refused:
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
    return Refused(f"data.{key}: {path} has no column {name!r}{hint}; its columns are {shown}")
