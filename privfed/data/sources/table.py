"""A table of the user's own: CSV, Parquet or npz, with declared columns, bounds and classes.

All that shapes what a model sees is declared in the configuration, or comes with a public sample
(`privfed declare`): to find a column's range, its categories or the classes in private data would
be a release of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator

from privfed.data.federation import Examples, Meaning
from privfed.data.preprocessing import Preprocessing
from privfed.data.tables import missing
from privfed.data.tables.cells import Rules, as_text
from privfed.data.tables.columns import Columns, header, read
from privfed.data.tables.dates import Dates, numbers
from privfed.data.tables.delimited import Dialect, delimiter_of, known_encoding
from privfed.data.tables.features import (
    Category,
    Feature,
    called,
    inputs,
    matching,
    prepared,
    preprocessing,
    scaled,
)
from privfed.data.tables.missing import Missing
from privfed.data.tables.unlabelled import labels_known, labels_there, with_any_labels
from privfed.errors import Refused
from privfed.parts import Part
from privfed.streams import Streams
from privfed.suggestions import nearest
from privfed.vector import Indices

Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]
_ESCAPED, _PATTERN = re.compile(r"\[[*?[]\]"), re.compile(r"[*?[]")
"""A letter of a column's name that would make a pattern of it, written so that it does not; and
what does.
"""


class Table(Part):
    """A table of your own. x `[N, features]` in [-1, 1]; an npz may hold images `[N, *shape]`.

    `features` maps columns (or patterns, "pixel*") to their bounds [low, high], from which they are
    scaled, `dates` to their first and last; `categories` maps columns to their values, one feature
    0 or 1 each. `outside` says what becomes of a number beyond its bounds or a value that is not
    declared ("clip": the bound, or no category; "refuse").

    `missing` says what an empty cell counts as: "refuse", a number for all features (and then none
    of its values for a category), or a table by column: a number, a date, or "none" for a category.
    `missing_words` are cells that are empty too, as "unknown". `encoding`, `delimiter` and
    `decimal` are a CSV's.

    `label` is one column, with `labels` (its values by name), `classes` (whole numbers from 0) or
    `label_bounds` (a number to predict); or several columns of 0 and 1. `client` names the column
    that says whose a row is; without it, partition the rows by "iid" or another simulation. A
    number to predict is clipped to its bounds too, and so it is scored: choose them wide enough.
    `test_path` is a public table with the same columns.
    """

    path: str
    label: str | list[str]
    features: dict[str, Bounds] = {}
    dates: dict[str, Dates] = {}
    categories: dict[str, list[str | int | bool]] = {}
    client: str = ""
    labels: list[str] = []
    classes: int = Field(0, ge=0)
    label_bounds: list[float] = Field([], max_length=2)
    outside: Literal["clip", "refuse"] = "clip"
    missing: Missing = "refuse"
    missing_words: list[str] = []
    delimiter: str = Field(",", min_length=1, max_length=1)
    decimal: Literal[".", ","] = "."
    encoding: Annotated[str, AfterValidator(known_encoding)] = "utf-8"
    test_path: str = ""
    natural_partition: ClassVar[bool] = True
    real_people: ClassVar[bool] = True
    later: ClassVar[frozenset[str]] = frozenset({"dates", "missing_words", "decimal", "encoding"})

    @model_validator(mode="after")
    def _whole(self) -> Table:
        if not self.features and not self.dates and not self.categories:
            raise ValueError("name at least one column in features, dates or categories")
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
        if self.client and self.client in self._label_columns:
            raise ValueError(f"{self.client!r} is both the client column and the label")
        self._refuse_doubled()
        missing.refuse_misplaced(self.missing, self.features, self.dates, self.categories)
        return self

    def _refuse_doubled(self) -> None:
        """Where a column of dates is declared as another thing too, or a feature is the answer."""
        others = {*self.features, *self.categories}
        if twice := sorted(others & {*self.dates}):
            raise ValueError(
                f"{twice[0]!r} is among dates, and a feature or category; expected one"
            )
        own = {*self._label_columns} | ({self.client} if self.client else set())
        if leaked := sorted(own & {*others, *self.dates}):
            raise ValueError(
                f"{leaked[0]!r} is the label or the client column; a feature that holds it would "
                "give the answer away"
            )

    @property
    def squared_norm(self) -> float | None:
        """At most 1 of every column: a number in [-1, 1], or a 1 at one of its categories.

        None where a file says how many columns there are: of a pattern, or of an npz.
        """
        patterns = any(_PATTERN.search(_ESCAPED.sub("", key)) for key in self.features)
        if patterns or Path(self.path).suffix.lower() == ".npz":
            return None
        return float(len(self.features) + len(self.dates) + len(self.categories))

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
        there = self.client in header(path, self.dialect)
        return self._load(path, self.client if there else "")

    def load_inputs(self) -> Examples:
        """The rows of a table to predict, which may have neither labels nor the client column."""
        path = Path(self.path)
        there = self.client in header(path, self.dialect)
        return self._load(path, self.client if there else "", label_free=True)

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> torch.Tensor:
        """X of made-up rows: see `privfed.data.Prepares`."""
        return prepared(numbers, codes, how, Rules(Path(self.path), "clip", ()))

    @property
    def dialect(self) -> Dialect:
        """How its file is written."""
        return Dialect(self.delimiter, self.encoding, self.decimal, tuple(self.missing_words))

    def _load(self, path: Path, client: str, label_free: bool = False) -> Examples:
        """`label_free`: labels may be missing."""
        names = header(path, self.dialect)
        features = self._features(names, path)
        labels = self._label_columns
        labels = labels_there(labels, names, path) if label_free else labels
        self._refuse_absent(names, path, client, labels)
        named = labels if self.labels else []
        words = [*self.dates, *self.categories, *named, *([client] if client else [])]
        numbers = {label: repr(label) for label in labels if label not in named}
        table = read(
            path,
            numbers={**{name: feature.called for name, feature in features.items()}, **numbers},
            words={name: repr(name) for name in words},
            dialect=self.dialect,
        )
        if not table.rows:
            raise Refused(f"data: {path} holds no row")
        rules = Rules(path, self.outside, self.missing_words)
        labelled = not label_free or (bool(labels) and labels_known(table, labels, path))
        y, classes, meaning, beyond = self._labels(
            table if labelled else self._with_any_labels(table), rules
        )
        columns = {name: (feature, table.numbers[name]) for name, feature in features.items()}
        columns |= self._days(table, path)
        categories = {name: (self._category(name), table.words[name]) for name in self.categories}
        x, clipped = inputs(table.rows, columns, categories, rules)
        counts = {"clipped_values": clipped, "clipped_labels": beyond}
        how = preprocessing(x, columns, categories, self.outside == "clip")
        examples = Examples(
            x, y, classes, meaning=meaning, counts=counts, preprocessing=how, labelled=labelled
        )
        if not client:
            return examples
        owners, clients = rules.owners(table.words[client], repr(client))
        return replace(examples, owners=owners, clients=clients)

    @property
    def _label_columns(self) -> list[str]:
        return [self.label] if isinstance(self.label, str) else self.label

    def _refuse_absent(
        self, names: list[str], path: Path, client: str, labels: Sequence[str]
    ) -> None:
        """Where a column that is declared by its name is not among the `names`."""
        declared = [("dates", name) for name in self.dates]
        declared += [("categories", name) for name in self.categories]
        declared += [("client", client)] if client else []
        declared += [("label", label) for label in labels]
        for key, column in declared:
            if column not in names:
                raise self._no_column(key, column, names, path)

    def _features(self, names: list[str], path: Path) -> dict[str, Feature]:
        """The columns of numbers, by name.

        A column's own name goes before a pattern, which never means the client, a label, a date or
        a category.
        """
        taken = {self.client, *self._label_columns, *self.dates, *self.categories, *self.features}
        found: dict[str, Feature] = {}
        for pattern, (low, high) in self.features.items():
            columns = matching(pattern, names, taken)
            if not columns:
                raise self._no_column("features", pattern, names, path)
            for name in columns:
                found.setdefault(
                    name,
                    Feature(
                        pattern,
                        called(name, pattern, names),
                        low,
                        high,
                        missing.number(self.missing, name, pattern),
                        f"[{low:g}, {high:g}]",
                    ),
                )
        return found

    def _days(self, table: Columns, path: Path) -> dict[str, tuple[Feature, np.ndarray]]:
        """The columns of dates as numbers, by name."""
        found = {}
        for name, dates in self.dates.items():
            where = f"data: {path}, row {{row}}: column {name!r}"
            days = numbers(table.words[name], dates.format, self.dialect.missing, where)
            shown = f"[{dates.first}, {dates.last}]"
            empty = missing.date(self.missing, name)
            found[name] = Feature(name, repr(name), *dates.bounds, empty, shown, True), days
        return found

    def _category(self, name: str) -> Category:
        values = tuple(as_text(value) for value in self.categories[name])
        return Category(name, repr(name), values, missing.no_category(self.missing, name))

    def _with_any_labels(self, table: Columns) -> Columns:
        """`table` with labels of the declared form, where there are none."""
        if self.labels:
            return with_any_labels(table, dict.fromkeys(self._label_columns, self.labels[0]), {})
        number = self.label_bounds[0] if self.label_bounds else 0.0
        return with_any_labels(table, {}, dict.fromkeys(self._label_columns, number))

    def _labels(self, table: Columns, rules: Rules) -> tuple[torch.Tensor, int, Meaning, int]:
        """y, its number of classes or width, what it means, and how many were clipped."""
        if not isinstance(self.label, str):
            columns = [rules.zero_or_one(table.numbers[name], repr(name)) for name in self.label]
            y = torch.from_numpy(np.stack(columns, 1).astype(np.float32))
            return y, len(columns), Meaning(tuple(self.label)), 0
        called = repr(self.label)
        if self.labels:
            codes = rules.named_class(table.words[self.label], called, self.labels)
            return torch.from_numpy(codes), len(self.labels), Meaning(tuple(self.labels)), 0
        numbers = rules.one_number(table.numbers[self.label], called)
        if self.classes:
            whole = rules.whole_class(numbers, called, self.classes)
            return torch.from_numpy(whole), self.classes, Meaning(), 0
        low, high = self.label_bounds
        beyond = rules.beyond(numbers, called, (low, high), f"[{low:g}, {high:g}]")
        y = torch.from_numpy(scaled(numbers, low, high).astype(np.float32))
        meaning = Meaning(scale=(high - low) / 2, shift=(high + low) / 2)
        return y.unsqueeze(1), 1, meaning, beyond

    def _no_column(self, key: str, name: str, names: list[str], path: Path) -> Refused:
        close = nearest(name, names)
        meant = f"did you mean {close!r}? " if close else ""
        seems = delimiter_of(path, self.encoding) if len(names) == 1 else None
        hint = f" (they seem to be divided by {seems!r}: set data.delimiter)" if seems else ""
        shown = ", ".join(names[:20]) + (", …" if names[20:] else "")
        return Refused(
            f"data.{key}: {path} has no column {name!r}; expected one of the {len(names)} that its "
            f"first row names{hint}",
            private=f"{meant}its columns are {shown}",
        )
