"""A table of the user's own: CSV, Parquet or npz, with declared columns, bounds and classes.

All that shapes what a model sees is declared in the configuration, or read off a public sample
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

from privfed.data.federation import Examples
from privfed.data.preprocessing import Preprocessing
from privfed.data.tables import missing
from privfed.data.tables.absent import absent_column, refuse_absent
from privfed.data.tables.cells import CellRules, as_text
from privfed.data.tables.columns import Columns, column_names, read_columns
from privfed.data.tables.dates import Dates, day_numbers
from privfed.data.tables.delimited import Dialect, known_encoding
from privfed.data.tables.features import (
    CategoryFeature,
    NumberFeature,
    declared_preprocessing,
    feature_matrix,
    matching_columns,
    prepared_rows,
    public_name,
)
from privfed.data.tables.label import LabelDeclaration
from privfed.data.tables.missing import Missing
from privfed.data.tables.unlabelled import has_labels, present_labels
from privfed.errors import Refused
from privfed.parts import Part
from privfed.streams import Streams
from privfed.vector import Indices

Bounds = Annotated[list[float], Field(min_length=2, max_length=2)]
_ESCAPED, _PATTERN = re.compile(r"\[[*?[]\]"), re.compile(r"[*?[]")
"""Letters that would make a pattern of a column's name: escaped, so that they do not, and bare."""


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
    """A CSV, Parquet or npz file."""
    label: str | list[str]
    """The column to predict, or several columns of 0 and 1."""
    features: dict[str, Bounds] = {}
    """Column, or pattern as "pixel*", -> its bounds [low, high]."""
    dates: dict[str, Dates] = {}
    """Column of dates -> its first and last day, and how dates are written."""
    categories: dict[str, list[str | int | bool]] = {}
    """Column -> its values, each of which becomes a feature of 0 or 1."""
    client: str = ""
    """The column that says whose a row is. Without it, rows are dealt by a partition."""
    labels: list[str] = []
    """The values of the label, by name."""
    classes: int = Field(0, ge=0)
    """Or how many classes there are, numbered from 0."""
    label_bounds: list[float] = Field([], max_length=2)
    """Or the bounds [low, high] of a number to predict."""
    outside: Literal["clip", "refuse"] = "clip"
    """What becomes of a number beyond its bounds, or a value that is not declared: the bound or no
    category ("clip"), or a refusal."""
    missing: Missing = "refuse"
    """What an empty cell counts as: "refuse", a number for all features, or a table by column."""
    missing_words: list[str] = []
    """Cells that count as empty too, as "unknown"."""
    delimiter: str = Field(",", min_length=1, max_length=1)
    """What stands between the cells of a CSV."""
    decimal: Literal[".", ","] = "."
    """The decimal sign of a CSV."""
    encoding: Annotated[str, AfterValidator(known_encoding)] = "utf-8"
    """The encoding of a CSV."""
    test_path: str = ""
    """A public table with the same columns, to score on."""
    natural_partition: ClassVar[bool] = True
    real_people: ClassVar[bool] = True
    later: ClassVar[frozenset[str]] = frozenset({"dates", "missing_words", "decimal", "encoding"})

    @model_validator(mode="after")
    def _consistent(self) -> Table:
        if not self.features and not self.dates and not self.categories:
            raise ValueError("name at least one column in features, dates or categories")
        self._refuse_empty_ranges()
        self._declared_label.refuse_contradictions()
        self._refuse_repeated_values()
        self._refuse_columns_declared_twice()
        missing.refuse_misplaced(self.missing, self.features, self.dates, self.categories)
        return self

    def _refuse_empty_ranges(self) -> None:
        if len(self.label_bounds) == 1:
            raise ValueError(f"label_bounds is {self.label_bounds}; expected [low, high]")
        ranges = [*self.features.items(), ("the label", self.label_bounds or [0.0, 1.0])]
        for name, (low, high) in ranges:
            if not low < high:
                raise ValueError(
                    f"the bounds of {name!r} are [{low:g}, {high:g}]; expected [low, high]"
                )

    def _refuse_repeated_values(self) -> None:
        lists: dict[str, Sequence[object]] = {"labels": self.labels, **self.categories}
        for key, values in lists.items():
            if len({as_text(value) for value in values}) < len(values):
                raise ValueError(f"{key} names a value twice: {values}")

    def _refuse_columns_declared_twice(self) -> None:
        """A column is one of a number, a date, a category, the label and the client column."""
        label = {*self._declared_label.columns}
        if self.client and self.client in label:
            raise ValueError(f"{self.client!r} is both the client column and the label")
        undated = {*self.features, *self.categories}
        if twice := sorted(undated & {*self.dates}):
            raise ValueError(
                f"{twice[0]!r} is among dates, and a feature or category; expected one"
            )
        reserved = label | ({self.client} if self.client else set())
        if leaked := sorted(reserved & {*undated, *self.dates}):
            raise ValueError(
                f"{leaked[0]!r} is the label or the client column; a feature that holds it would "
                "give the answer away"
            )

    @property
    def squared_norm(self) -> float | None:
        """The number of columns: each adds at most 1, a number in [-1, 1] or one category's 1.

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
        return self._load(path, self._client_if_present(path))

    def load_inputs(self) -> Examples:
        """The rows of a table to predict, which may have neither labels nor the client column."""
        path = Path(self.path)
        return self._load(path, self._client_if_present(path), label_free=True)

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> torch.Tensor:
        return prepared_rows(numbers, codes, how, CellRules(Path(self.path), "clip", ()))

    @property
    def dialect(self) -> Dialect:
        """How its file is written."""
        return Dialect(self.delimiter, self.encoding, self.decimal, tuple(self.missing_words))

    @property
    def _declared_label(self) -> LabelDeclaration:
        single = isinstance(self.label, str)
        columns = [self.label] if isinstance(self.label, str) else self.label
        return LabelDeclaration(columns, single, self.labels, self.classes, self.label_bounds)

    def _client_if_present(self, path: Path) -> str:
        """The client column, where the table at `path` has it; else an empty name."""
        return self.client if self.client in column_names(path, self.dialect) else ""

    def _load(self, path: Path, client: str, label_free: bool = False) -> Examples:
        """The table at `path`, with owners where `client` is a column.

        `label_free` says that labels may be missing. Raises `Refused` for what is not as declared.
        """
        names = column_names(path, self.dialect)
        numbers = self._number_features(names, path)
        label, labels = self._declared_label, self._declared_label.columns
        if label_free:
            labels = present_labels(labels, names, path)
        self._refuse_absent(names, path, client, labels)
        table = self._read(path, numbers, labels, client)
        rules = CellRules(path, self.outside, self.missing_words)
        labelled = not label_free or (bool(labels) and has_labels(table, labels, path))
        encoded = label.encoded(table if labelled else label.with_placeholders(table), rules)
        columns = {name: (feature, table.numbers[name]) for name, feature in numbers.items()}
        columns |= self._date_features(table, path)
        categories = {n: (self._category_feature(n), table.words[n]) for n in self.categories}
        x, clipped = feature_matrix(table.rows, columns, categories, rules)
        examples = Examples(
            x,
            encoded.y,
            encoded.classes,
            meaning=encoded.meaning,
            counts={"clipped_values": clipped, "clipped_labels": encoded.clipped},
            preprocessing=declared_preprocessing(x, columns, categories, self.outside == "clip"),
            labelled=labelled,
        )
        if not client:
            return examples
        owners, clients = rules.owners(table.words[client], repr(client))
        return replace(examples, owners=owners, clients=clients)

    def _refuse_absent(
        self, names: list[str], path: Path, client: str, labels: Sequence[str]
    ) -> None:
        """Raise `Refused` where a column that is declared by its name is not among the `names`."""
        declared = [("dates", name) for name in self.dates]
        declared += [("categories", name) for name in self.categories]
        declared += [("client", client)] if client else []
        declared += [("label", label) for label in labels]
        refuse_absent(declared, names, path, self.encoding)

    def _read(
        self, path: Path, features: dict[str, NumberFeature], labels: Sequence[str], client: str
    ) -> Columns:
        """All declared columns of the table, none of whose cells has been checked yet."""
        named_labels = labels if self.labels else []
        words = [*self.dates, *self.categories, *named_labels, *([client] if client else [])]
        numbers = {name: feature.called for name, feature in features.items()}
        numbers |= {label: repr(label) for label in labels if label not in named_labels}
        table = read_columns(path, numbers, {name: repr(name) for name in words}, self.dialect)
        if not table.rows:
            raise Refused(f"data: {path} holds no row")
        return table

    def _number_features(self, names: list[str], path: Path) -> dict[str, NumberFeature]:
        """The columns of numbers, by name.

        A column's own name goes before a pattern, which never means the client, a label, a date or
        a category.
        """
        labels = self._declared_label.columns
        taken = {self.client, *labels, *self.dates, *self.categories, *self.features}
        features: dict[str, NumberFeature] = {}
        for pattern, (low, high) in self.features.items():
            columns = matching_columns(pattern, names, taken)
            if not columns:
                raise absent_column("features", pattern, names, path, self.encoding)
            for name in columns:
                feature = NumberFeature(
                    pattern,
                    public_name(name, pattern, names),
                    low,
                    high,
                    missing.empty_number(self.missing, name, pattern),
                    f"[{low:g}, {high:g}]",
                )
                features.setdefault(name, feature)
        return features

    def _date_features(
        self, table: Columns, path: Path
    ) -> dict[str, tuple[NumberFeature, np.ndarray]]:
        """The columns of dates as days since the first of 1970, by name."""
        features = {}
        for name, dates in self.dates.items():
            where = f"data: {path}, row {{row}}: column {name!r}"
            days = day_numbers(table.words[name], dates.format, self.dialect.missing, where)
            shown = f"[{dates.first}, {dates.last}]"
            empty = missing.empty_day(self.missing, name)
            feature = NumberFeature(name, repr(name), *dates.bounds, empty, shown, days=True)
            features[name] = feature, days
        return features

    def _category_feature(self, name: str) -> CategoryFeature:
        values = tuple(as_text(value) for value in self.categories[name])
        may_be_empty = missing.empty_is_no_category(self.missing, name)
        return CategoryFeature(name, repr(name), values, may_be_empty)
