"""A table of the user's own: CSV, Parquet or npz, with declared columns, bounds and classes.

All that shapes what a model sees is declared in the configuration, or comes with a public sample
(`privfed declare`): to find a column's range, its categories or the classes in private data would
be a release of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from privfed.data.cells import Rules, as_text, native
from privfed.data.columns import Columns, Words, header, read
from privfed.data.unlabelled import labels_known, labels_there, with_any_labels
from privfed.errors import Refused
from privfed.federation import Examples, Indices, Meaning
from privfed.mapped import Mapped
from privfed.parts import Part
from privfed.preprocessing import Category, Numbers, Preprocessing, merged
from privfed.streams import Streams
from privfed.suggestions import nearest

Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]
_ONTO = (-1.0, 1.0)
_PATTERN = frozenset("*?[")
"""What makes a pattern of a column's name."""


class Table(Part):
    """A table of your own. x `[N, features]` in [-1, 1]; an npz may hold images `[N, *shape]`.

    `features` maps columns (or patterns, "pixel*") to their bounds [low, high], from which they are
    scaled; `categories` maps columns to their values, one feature 0 or 1 each. `outside` says what
    becomes of a number beyond its bounds or a value that is not declared ("clip": the bound, or no
    category; "refuse"), `missing` of an empty cell ("refuse", or the number to take; no category).

    `label` is one column, with `labels` (its values by name), `classes` (whole numbers from 0) or
    `label_bounds` (a number to predict); or several columns of 0 and 1. `client` names the column
    that says whose a row is; without it, partition the rows by "iid" or another simulation. A
    number to predict is clipped to its bounds too, and so it is scored: choose them wide enough.
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
        if len(self.label_bounds) == 1:
            raise ValueError(f"label_bounds is {self.label_bounds}; expected [low, high]")
        ranges = [*self.features.items(), ("the label", self.label_bounds or [0.0, 1.0])]
        for name, (low, high) in ranges:
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
        if not isinstance(self.label, str) and (any(kinds) or len(set(self.label)) < 2):
            raise ValueError("several label columns are 0 or 1 each: two or more, and nothing else")
        if len(self.labels) == 1 or self.classes == 1:
            raise ValueError("one class leaves nothing to learn; expected two or more")
        lists: dict[str, Sequence[object]] = {"labels": self.labels, **self.categories}
        for key, named in lists.items():
            if len({as_text(value) for value in named}) < len(named):
                raise ValueError(f"{key} names a value twice: {named}")
        if self.client and self.client in ([self.label] if self.labels else self.label):
            raise ValueError(f"{self.client!r} is both the client column and the label")
        return self

    @property
    def squared_norm(self) -> float | None:
        """At most 1 of every column: a number in [-1, 1], or a 1 at one of its categories.

        None where a file says how many columns there are: of a pattern, or of an npz.
        """
        if Path(self.path).suffix.lower() == ".npz" or any(
            _PATTERN & {*key} for key in self.features
        ):
            return None
        return float(len(self.features) + len(self.categories))

    def sources(self, seed: int) -> tuple[str, ...]:
        """The client column, wherever the table lies; and its rows, whoever is a client."""
        place = hashlib.sha256(str(Path(self.path).resolve()).encode()).hexdigest()
        return (f"table: {self.client}", f"table at {place[:16]}")

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(Path(self.path), self.client)

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        if not self.test_path:
            return None
        path = Path(self.test_path)
        there = self.client in header(path, self.delimiter)
        return self._load(path, self.client if there else "")

    def load_inputs(self) -> Examples:
        """The rows of a table to predict, which may have neither labels nor the client column."""
        path = Path(self.path)
        there = self.client in header(path, self.delimiter)
        return self._load(path, self.client if there else "", label_free=True)

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> torch.Tensor:
        """X of made-up rows: see `privfed.data.Prepares`."""
        each = [one for one in how.numbers for _ in range(one.count)]
        names = [f"number {place}" for place, _ in enumerate(each, start=1)]
        words = {}
        for place, category in enumerate(how.categories):
            known = (codes[:, place] >= 0) & (codes[:, place] < len(category.values))
            words[category.column] = Words(np.where(known, codes[:, place], -1), [*category.values])
        bounds = {name: one.bounds for name, one in zip(names, each, strict=True)}
        filled = [
            np.nan_to_num(column, nan=one.missing or 0.0, posinf=np.inf, neginf=-np.inf)
            for column, one in zip(numbers.T, each, strict=True)
        ]
        found = Columns(len(numbers), dict(zip(names, filled, strict=True)), words)
        rules = Rules(Path(self.path), "clip", 0.0)
        x, _ = self._features(found, bounds, dict.fromkeys(names, "made up"), rules)
        if isinstance(x, Mapped):
            raise TypeError("several columns are no array")
        return x

    def _load(self, path: Path, client: str, label_free: bool = False) -> Examples:
        """`label_free`: labels may be missing."""
        names = header(path, self.delimiter)
        bounds, called = self._feature_columns(names, path)
        labels = [self.label] if isinstance(self.label, str) else self.label
        labels = labels_there(labels, names, path) if label_free else labels
        for key, column in [("client", client), *(("label", label) for label in labels)]:
            if column and column not in names:
                raise _no_column(key, column, names, path)
        by_name = labels if self.labels else []
        words = [*self.categories, *by_name, *([client] if client else [])]
        numbers = {label: repr(label) for label in labels if label not in by_name}
        found = read(
            path,
            numbers={**called, **numbers},
            words={name: repr(name) for name in words},
            delimiter=self.delimiter,
        )
        if not found.rows:
            raise Refused(f"data: {path} holds no row")
        missing = None if self.missing == "refuse" else float(self.missing)
        rules = Rules(path, self.outside, missing)
        labelled = not label_free or (bool(labels) and labels_known(found, labels, path))
        y, classes, meaning, beyond = self._labels(
            found if labelled else self._with_any_labels(found), rules
        )
        x, clipped = self._features(found, bounds, called, rules)
        counts = {"clipped_values": clipped, "clipped_labels": beyond}
        examples = Examples(
            x,
            y,
            classes,
            meaning=meaning,
            counts=counts,
            preprocessing=self._preprocessing(x, found, bounds, missing),
            labelled=labelled,
        )
        if not client:
            return examples
        owners, clients = rules.owners(found.words[client], repr(client))
        return replace(examples, owners=owners, clients=clients)

    def _feature_columns(
        self, names: list[str], path: Path
    ) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
        """Each numeric feature column with its bounds, and with what messages call it.

        A column's own name goes before a pattern, which never means the client, a label or a
        category.
        """
        own = {self.client, *([self.label] if isinstance(self.label, str) else self.label)}
        leaked = sorted(own & {*self.features, *self.categories})
        if leaked:
            raise Refused(
                f"data.features: {leaked[0]!r} is the label or the client column; a feature that "
                "holds it would give the answer away"
            )
        found: dict[str, tuple[float, float]] = {}
        called: dict[str, str] = {}
        for pattern, (low, high) in self.features.items():
            matching = (
                [pattern]
                if pattern in names
                else [
                    name
                    for name in names
                    if fnmatchcase(name, pattern)
                    and name not in {*own, *self.categories, *self.features}
                ]
            )
            if not matching:
                raise _no_column("features", pattern, names, path)
            new = [name for name in matching if name not in found]
            found |= dict.fromkeys(new, (low, high))
            for name in new:
                place = f"number {names.index(name) + 1} (of {pattern!r})"
                called[name] = repr(name) if name == pattern else place
        for column in self.categories:
            if column not in names:
                raise _no_column("categories", column, names, path)
        return found, called

    def _features(
        self,
        found: Columns,
        bounds: dict[str, tuple[float, float]],
        called: dict[str, str],
        rules: Rules,
    ) -> tuple[torch.Tensor | Mapped, int]:
        """x, and how many values were clipped."""
        arrays = [found.numbers[name] for name in bounds]
        if len(arrays) == 1 and arrays[0].ndim > 1 and not self.categories:
            ((name, (low, high)),) = bounds.items()
            count = rules.beyond(arrays[0], called[name], low, high)
            store = torch.from_numpy(native(arrays[0]))
            mapped = Mapped(store, torch.arange(found.rows), (low, high), _ONTO, rules.missing)
            return mapped, count
        width = sum(int(np.prod(array.shape[1:])) for array in arrays)
        width += sum(len(values) for values in self.categories.values())
        x = np.zeros((found.rows, width), dtype=np.float32)
        at = count = 0
        for name, (low, high) in bounds.items():
            column = found.numbers[name].reshape(found.rows, -1)
            count += rules.beyond(column, called[name], low, high)
            filled = np.where(np.isnan(column), rules.missing or 0.0, column)
            x[:, at : at + column.shape[1]] = _scaled(filled, low, high)
            at += column.shape[1]
        for name, values in self.categories.items():
            codes, unknown = rules.category(found.words[name], repr(name), values)
            count += unknown
            known = np.flatnonzero(codes >= 0)
            x[known, at + codes[known]] = 1.0
            at += len(values)
        return torch.from_numpy(x), count

    def _preprocessing(
        self,
        x: torch.Tensor | Mapped,
        found: Columns,
        bounds: dict[str, tuple[float, float]],
        missing: float | None,
    ) -> Preprocessing:
        """What `_features` does, as the table is declared; columns go by what declares them."""
        clips = self.outside == "clip"
        declared = [_declaring(name, self.features) for name in bounds]
        if isinstance(x, Mapped):
            return Preprocessing.of_mapped(declared[0], x, clips)
        numbers = tuple(
            Numbers(
                column=column,
                count=int(np.prod(found.numbers[name].shape[1:])),
                bounds=bounds[name],
                missing=missing,
            )
            for name, column in zip(bounds, declared, strict=True)
        )
        categories = tuple(
            Category(
                column=name,
                values=tuple(as_text(value) for value in values),
                lacks=missing is not None,
            )
            for name, values in self.categories.items()
        )
        return Preprocessing(
            numbers=merged(numbers),
            categories=categories,
            onto=_ONTO,
            shape=tuple(x.shape[1:]),
            clips=clips,
        )

    def _with_any_labels(self, found: Columns) -> Columns:
        """`found` with labels of the declared form, where there are none."""
        columns = [self.label] if isinstance(self.label, str) else self.label
        if self.labels:
            return with_any_labels(found, dict.fromkeys(columns, self.labels[0]), {})
        any_number = self.label_bounds[0] if self.label_bounds else 0.0
        return with_any_labels(found, {}, dict.fromkeys(columns, any_number))

    def _labels(self, found: Columns, rules: Rules) -> tuple[torch.Tensor, int, Meaning, int]:
        """y, its number of classes or width, what it means, and how many were clipped."""
        if not isinstance(self.label, str):
            columns = [rules.zero_or_one(found.numbers[name], repr(name)) for name in self.label]
            y = torch.from_numpy(np.stack(columns, 1).astype(np.float32))
            return y, len(columns), Meaning(tuple(self.label)), 0
        called = repr(self.label)
        if self.labels:
            codes = rules.named_class(found.words[self.label], called, self.labels)
            return torch.from_numpy(codes), len(self.labels), Meaning(tuple(self.labels)), 0
        numbers = rules.one_number(found.numbers[self.label], called)
        if self.classes:
            whole = rules.whole_class(numbers, called, self.classes)
            return torch.from_numpy(whole), self.classes, Meaning(), 0
        low, high = self.label_bounds
        beyond = rules.beyond(numbers, called, low, high)
        y = torch.from_numpy(_scaled(numbers, low, high).astype(np.float32))
        meaning = Meaning(scale=(high - low) / 2, shift=(high + low) / 2)
        return y.unsqueeze(1), 1, meaning, beyond


def _scaled(numbers: np.ndarray, low: float, high: float) -> np.ndarray:
    """From [low, high], clipped, onto [-1, 1]."""
    start, end = _ONTO
    return (numbers.clip(low, high) - low) * ((end - start) / (high - low)) + start


def _declaring(name: str, features: Iterable[str]) -> str:
    """The key of `features` that means the column `name`: a pattern never shows what it matched."""
    return name if name in features else next(key for key in features if fnmatchcase(name, key))


def _no_column(key: str, name: str, names: list[str], path: Path) -> Refused:
    close = nearest(name, names)
    meant = f"did you mean {close!r}? " if close else ""
    other = [mark for mark in ";\t|" if len(names) == 1 and mark in names[0]]
    hint = f" (they seem to be divided by {other[0]!r}: set data.delimiter)" if other else ""
    shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
    return Refused(
        f"data.{key}: {path} has no column {name!r}; expected one of the {len(names)} that its "
        f"first row names{hint}",
        private=f"{meant}its columns are {shown}",
    )
