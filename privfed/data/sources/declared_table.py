"""The declaration of a table, and the examples that follow from it and from the table's columns.

Everything that shapes the model's input is declared in the configuration, or inferred from a public
sample (`privfed declare`): inferring a column's range, its categories or the classes from private
data would itself be a release.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BeforeValidator, Field, model_validator

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.vector import Indices
from privfed.data.federation import Examples
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Preprocessing
from privfed.data.tables import missing
from privfed.data.tables.cells import CellRules, as_text
from privfed.data.tables.columns import Columns
from privfed.data.tables.dates import Dates, day_numbers
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.features import (
    CategoryFeature,
    DeclaredNames,
    LabelDeclaration,
    NumberFeature,
    declared_preprocessing,
    feature_matrix,
    has_labels,
    outside_bounds,
    prepared_rows,
    present_labels,
)
from privfed.data.tables.missing import Missing, absent_column, refuse_absent
from privfed.data.tables.readable import Readable


def _of_numbers(value: object) -> object:
    """Returns `value`; raises `ValueError` for a list with words, which are for data.categories."""
    if isinstance(value, list) and any(isinstance(each, str) for each in value):
        raise ValueError(
            "expected [lowest, highest] of a number; list the words of a column in data.categories "
            "instead"
        )
    return value


Bounds = Annotated[list[float], Field(min_length=2, max_length=2), BeforeValidator(_of_numbers)]
_ESCAPED, _PATTERN = re.compile(r"\[[*?[]\]"), re.compile(r"[*?[]")
"""Characters that make a column's name a pattern: escaped by brackets, and unescaped."""


class DeclaredTable(Part):
    """The declaration of any table: the keys of `Table`, except those about a file."""

    label: str | list[str] = Field(examples=["y"])
    """The column to predict, or several columns of 0 and 1."""
    features: dict[str, Bounds] = Field({}, examples=[{"a": [0.0, 1.0]}])
    """Bounds [low, high] of each column, by its name or a pattern such as "pixel*"."""
    dates: dict[str, Dates] = {}
    """First day, last day and format of each column of dates, by its name."""
    categories: dict[str, list[str | int | bool]] = {}
    """Values of each column of words, by its name; each value becomes a feature of 0 or 1."""
    client: str = ""
    """Column that identifies the client of each row; if empty, a partition assigns rows."""
    site: str = ""
    """Column that identifies the site of each row; requires `client` and `data.sites`."""
    labels: list[str] = []
    """Values of the label, one for each class."""
    classes: int = Field(0, ge=0, examples=[2])
    """Number of classes, if labels are integers from 0; instead of `labels`."""
    label_bounds: list[float] = Field([], max_length=2)
    """Bounds [low, high] of the label, if it is a number to predict."""
    outside: Literal["clip", "refuse"] = "clip"
    """Treatment of numbers beyond their bounds and of undeclared values: "clip" replaces them by
    the bound, or by no category; "refuse" refuses the table.
    """
    missing: Missing = "refuse"
    """Replacement of empty cells: a number for all features, or one by column in [data.missing];
    "refuse" refuses tables with empty cells.
    """
    missing_words: list[str] = []
    """Words that count as empty cells, such as "unknown"."""
    natural_partition: ClassVar[bool] = True
    holds_real_clients: ClassVar[bool] = True
    storage_keys: ClassVar[frozenset[str]] = frozenset({"site"})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._refuse_wrong_inputs()
        self._refuse_empty_ranges()
        self._declared_label.refuse_contradictions()
        self._refuse_repeated_values()
        self._refuse_columns_declared_twice()
        missing.refuse_misplaced(self.missing, self.features, self.dates, self.categories)
        return self

    def _refuse_wrong_inputs(self) -> None:
        if not self.features and not self.dates and not self.categories:
            raise ValueError("features, dates and categories are empty; name at least one column")

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
                raise ValueError(
                    f"{key} is {values}, but names a value twice; name each value once"
                )

    def _refuse_columns_declared_twice(self) -> None:
        """Raises `ValueError` if a column has two roles, or `site` is set without `client`."""
        label = {*self._declared_label.columns}
        if self.client and self.client in label:
            raise ValueError(
                f"{self.client!r} is both the client column and the label; name two columns"
            )
        if self.site and self.site in label | {self.client}:
            other = "the label" if self.site in label else "the client column"
            raise ValueError(f"{self.site!r} is both the site column and {other}; name two columns")
        if self.site and not self.client:
            raise ValueError(
                f"site is {self.site!r}, but no column names each row's client, so rows are "
                "partitioned over synthetic clients, which are at no site; name the client "
                "column (client), or leave site out: data.sites creates synthetic sites"
            )
        undated = {*self.features, *self.categories}
        if twice := sorted(undated & {*self.dates}):
            raise ValueError(
                f"{twice[0]!r} is listed in dates and as a feature or category; list each column "
                "once"
            )
        reserved = label | ({self.client} if self.client else set())
        if leaked := sorted(reserved & {*undated, *self.dates}):
            raise ValueError(
                f"{leaked[0]!r} is the label or the client column, but is also listed as a "
                "feature, which would reveal the label; remove the column from the features"
            )
        if self.site and self.site in {*undated, *self.dates}:
            raise ValueError(
                f"{self.site!r} is the site column, but is also a feature, date or category; list "
                "it once, since a table to predict may have no column of sites"
            )

    @property
    def squared_norm(self) -> float | None:
        """Bound on an example's squared norm: its number of columns, each of which adds at most 1.

        None if the number of columns depends on the table, as for a pattern.
        """
        if any(_PATTERN.search(_ESCAPED.sub("", key)) for key in self.features):
            return None
        return float(len(self.features) + len(self.dates) + len(self.categories))

    def prepared(self, numbers: np.ndarray, codes: Indices, how: Preprocessing) -> torch.Tensor:
        return prepared_rows(numbers, codes, how, CellRules("synthetic rows", "clip", ()))

    @property
    def dialect(self) -> Dialect:
        """The dialect of the table's cells."""
        return Dialect(missing_words=tuple(self.missing_words))

    def load_from(
        self, table: Readable, label_free: bool = False, ownerless: bool = False
    ) -> Examples:
        """Returns the examples in `table`, with owners and sites if their columns are declared.

        Args:
          table: the table to read.
          label_free: whether the columns of labels, clients and sites may be absent, and labels
            empty.
          ownerless: whether the columns of clients and sites may be absent, as in a public test
            set.

        Raises:
          Refused: if the table has no row, lacks a column, or a cell contradicts its declaration.
        """
        names = table.names()
        optional = label_free or ownerless
        client = "" if optional and self.client not in names else self.client
        site = "" if optional and self.site not in names else self.site
        numbers = self._number_features(names, table)
        label, labels = self._declared_label, self._declared_label.columns
        if label_free:
            labels = present_labels(labels, names, str(table))
        self._refuse_absent(names, table, client, site, labels)
        columns = self._read(table, numbers, labels, [name for name in (client, site) if name])
        rules = CellRules(str(table), self.outside, self.missing_words)
        labelled = not label_free or (bool(labels) and has_labels(columns, labels, str(table)))
        encoded = label.encoded(columns if labelled else label.with_placeholders(columns), rules)
        x, clipped, how = self._features(columns, numbers, table, rules)
        public = ownerless and isinstance(x, torch.Tensor)
        outside = outside_bounds(numbers, columns) if public else ()
        examples = Examples(
            x,
            encoded.y,
            encoded.classes,
            meaning=encoded.meaning,
            counts={"clipped_values": clipped, "clipped_labels": encoded.clipped},
            preprocessing=how,
            labelled=labelled,
            outside=outside,
        )
        if client:
            owners, clients = rules.owners(columns.words[client], repr(client))
            examples = replace(examples, owners=owners, clients=clients)
        if site:
            places, sites = rules.sites(columns.words[site], repr(site))
            examples = replace(examples, sites=places, site_names=sites)
        return examples

    def _features(
        self,
        columns: Columns,
        numbers: dict[str, NumberFeature],
        table: Readable,
        rules: CellRules,
    ) -> tuple[torch.Tensor | Mapped, int, Preprocessing | None]:
        """Returns the features `[N, *]`, the number of clipped values, and the preprocessing."""
        features = {name: (feature, columns.numbers[name]) for name, feature in numbers.items()}
        features |= self._date_features(columns, table)
        categories = {n: (self._category_feature(n), columns.words[n]) for n in self.categories}
        x, clipped = feature_matrix(columns.rows, features, categories, rules)
        how = declared_preprocessing(x, features, categories, self.outside == "clip")
        return x, clipped, how

    @property
    def _declared_label(self) -> LabelDeclaration:
        single = isinstance(self.label, str)
        columns = [self.label] if isinstance(self.label, str) else self.label
        return LabelDeclaration(columns, single, self.labels, self.classes, self.label_bounds)

    def _refuse_absent(
        self, names: list[str], table: Readable, client: str, site: str, labels: Sequence[str]
    ) -> None:
        """Raises `Refused` if `names` lacks a declared column of dates or categories.

        Also if it lacks `client` or `site` (unless that is ""), or one of `labels`.
        """
        declared = [("dates", name) for name in self.dates]
        declared += [("categories", name) for name in self.categories]
        declared += [("client", client)] if client else []
        declared += [("site", site)] if site else []
        declared += [("label", label) for label in labels]
        refuse_absent(declared, names, table)

    def _read(
        self,
        table: Readable,
        features: dict[str, NumberFeature],
        labels: Sequence[str],
        holders: Sequence[str],
    ) -> Columns:
        """Reads all declared columns of the table, without checking cells.

        `holders` are the columns of clients and sites. Raises `Refused` if the table has no
        row.
        """
        named_labels = labels if self.labels else []
        words = [*self.dates, *self.categories, *named_labels, *holders]
        numbers = {name: feature.called for name, feature in features.items()}
        numbers |= {label: repr(label) for label in labels if label not in named_labels}
        columns = table.read(numbers, {name: repr(name) for name in words})
        if not columns.rows:
            raise Refused(f"data: {table} holds no row; expected one row or more")
        return columns

    def _number_features(self, names: list[str], table: Readable) -> dict[str, NumberFeature]:
        """Returns the declared features that are numbers, by name of the column.

        A column's own name has precedence over a pattern, which never matches the client,
        the site, a label, a date or a category. Raises `Refused` if a name or pattern
        matches no column.
        """
        labels = self._declared_label.columns
        taken = {self.client, self.site, *labels, *self.dates, *self.categories, *self.features}
        features: dict[str, NumberFeature] = {}
        declared = DeclaredNames(names, taken)
        for pattern, (low, high) in self.features.items():
            columns = declared.matching(pattern)
            if not columns:
                raise absent_column("features", pattern, names, table)
            for name in columns:
                feature = NumberFeature(
                    pattern,
                    declared.public_name(name, pattern),
                    low,
                    high,
                    missing.empty_number(self.missing, name, pattern),
                    f"[{low:g}, {high:g}]",
                )
                features.setdefault(name, feature)
        return features

    def _date_features(
        self, columns: Columns, table: Readable
    ) -> dict[str, tuple[NumberFeature, np.ndarray]]:
        """Returns the features of dates, with their cells as days since 1970-01-01, by column."""
        features = {}
        for name, dates in self.dates.items():
            where = f"data: {table}, row {{row}}: column {name!r}"
            days = day_numbers(columns.words[name], dates.format, table.dialect.missing, where)
            shown = f"[{dates.first}, {dates.last}]"
            empty = missing.empty_day(self.missing, name)
            feature = NumberFeature(name, repr(name), *dates.bounds, empty, shown, days=True)
            features[name] = feature, days
        return features

    def _category_feature(self, name: str) -> CategoryFeature:
        values = tuple(as_text(value) for value in self.categories[name])
        may_be_empty = missing.empty_is_no_category(self.missing, name)
        return CategoryFeature(name, repr(name), values, may_be_empty)
