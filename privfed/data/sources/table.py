"""Sources of tables: in a CSV, Parquet or npz file, or passed in Python."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field

from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.parts import part_with_objects
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import Examples
from privfed.data.inputs import Input, X, by_name, by_position, side_by_side
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Preprocessing
from privfed.data.sites import earlier_sums
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.tables.array_table import ArrayShapes, PositionLabels
from privfed.data.tables.cells import CellRules
from privfed.data.tables.columns import Columns
from privfed.data.tables.delimited import Dialect, known_encoding
from privfed.data.tables.features import LabelDeclaration, NumberFeature
from privfed.data.tables.readable import Readable, TableFile


class GivenTable(DeclaredTable):
    """A table that was passed in Python, with columns declared as for the source `table`.

    The object is not stored: to resume a run, it has to be passed again.
    """

    rows: ClassVar[Readable | None] = None
    test: ClassVar[Readable | None] = None
    kept_by_user: ClassVar[bool] = True

    @classmethod
    def of(cls, rows: Readable, test: Readable | None = None) -> type[Self]:
        """Returns a class of sources that load `rows`, and the public test set `test`, if any."""
        return part_with_objects(cls, cls, rows=rows, test=test)

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns two origins: "table: " with the name of the client column, and "table*"."""
        return (f"table: {self.client}", "table*")

    def load(self, clients: int, streams: Streams) -> Examples:
        return self.load_from(self._passed_rows())

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        self._passed_rows()
        return self.load_from(self.test, ownerless=True) if self.test else None

    def load_inputs(self) -> Examples:
        """Returns the table's examples; labels, client and site columns may be missing."""
        return self.load_from(self._passed_rows(), label_free=True)

    def _passed_rows(self) -> Readable:
        """Returns the table. Raises `Refused` if it was not passed again."""
        if self.rows is None:
            raise Refused(
                "the data of this run were passed as an object, which a run directory does not "
                "store; in Python, pass the object again by privfed.load(path, data=population)"
            )
        return self.rows


class GivenArrays(GivenTable):
    """Arrays that were passed in Python: x is one array of a `shape`, or the declared `inputs`."""

    shape: list[Annotated[int, Field(ge=1)]] = []
    """Shape of one example, if its only feature is an array."""
    inputs: dict[str, Input] = {}
    """Inputs of the model by name, instead of features: numbers, token ids and masks."""
    label_shape: list[Annotated[int, Field(ge=1)]] = []
    """Shape of an example's labels, if each position has one."""
    ignored: int = -100
    """Label of positions that are not scored."""
    next_token: str = ""
    """Input of token ids; the label of each of its positions is the next token."""
    padding: int = Field(-1, ge=-1)
    """Token id of padding, which is not predicted; -1 if a mask states it, or there is none."""
    tokens_per_client: int = Field(0, ge=0)
    """Largest number of tokens per client in training. The first example of a client that
    exceeds it, and all later ones, are left out. 0 means no limit.
    """
    tokenizer: str = ""
    """Name of the tokenizer that made the tokens; recorded only."""

    @property
    def shapes(self) -> ArrayShapes:
        """The declared shapes of the arrays."""
        return ArrayShapes.of(self.shape, self.inputs, self.label_shape, not self.next_token)

    def _refuse_wrong_inputs(self) -> None:
        if not self.inputs:
            super()._refuse_wrong_inputs()
        elif self.features or self.dates or self.categories or self.shape:
            raise ValueError(
                "inputs is set, but so are features, dates, categories or shape; set only one kind"
            )
        if {"y", "client"} & self.inputs.keys():
            raise ValueError(
                "an input is called 'y' or 'client', but these name other columns; rename the input"
            )
        self._refuse_labels_of_positions()

    def _refuse_labels_of_positions(self) -> None:
        """Raises `ValueError` if the keys of labels per position contradict each other."""
        if self.next_token:
            of = self.inputs.get(self.next_token)
            if of is None or not of.tokens or len(of.shape) != 1:
                names = [name for name, each in self.inputs.items() if each.tokens]
                raise ValueError(
                    f"next_token is {self.next_token!r}; expected an input that is one sequence "
                    f"of token ids, among {names}"
                )
            if self.classes or self.labels or self.label_bounds or self.label_shape:
                raise ValueError(
                    "next_token is set, but so are classes, labels, label_bounds or label_shape; "
                    "leave those out, since the next token is the label"
                )
        elif self.label_shape and not self.classes:
            raise ValueError(
                "label_shape is set, but classes is not; set classes to the number of classes"
            )
        budgeted = any(each.tokens for each in self.inputs.values())
        if self.tokens_per_client and not budgeted:
            raise ValueError(
                "tokens_per_client is set, but no input holds token ids; leave the key out"
            )

    @property
    def squared_norm(self) -> float | None:
        """Bound on the squared norm: an example's number of values in [-1, 1]; None with tokens."""
        if any(each.tokens for each in self.inputs.values()):
            return None
        return float(sum(each.size for each in self.inputs.values()) or math.prod(self.shape))

    @property
    def _declared_label(self) -> LabelDeclaration:
        if not (self.next_token or self.label_shape):
            return super()._declared_label
        return PositionLabels(
            columns=[] if self.next_token else [str(self.label)],
            single=True,
            values=[],
            classes=self.inputs[self.next_token].tokens if self.next_token else self.classes,
            bounds=[],
            shape=tuple(self.label_shape),
            ignored=self.ignored,
            inputs=self.inputs,
            next_token=self.next_token,
            padding=self.padding,
        )

    def _number_features(self, names: list[str], table: Readable) -> dict[str, NumberFeature]:
        if not self.inputs:
            return super()._number_features(names, table)
        features = {}
        for name, each in self.inputs.items():
            low, high = each.bounds or (-math.inf, math.inf)
            features[name] = NumberFeature(name, repr(name), low, high, None, "")
        return features

    def _features(
        self,
        columns: Columns,
        numbers: dict[str, NumberFeature],
        table: Readable,
        rules: CellRules,
    ) -> tuple[Tensor | Mapped, int, Preprocessing | None]:
        if not self.inputs:
            return super()._features(columns, numbers, table, rules)
        values, clipped = {}, 0
        for name, each in self.inputs.items():
            called, refuse = f"{table}: input {name!r}", self.outside == "refuse"
            values[name], outside = each.encoded(columns.numbers[name], called, refuse)
            clipped += outside
        return side_by_side(values, self.inputs), clipped, None

    def load_from(
        self, table: Readable, label_free: bool = False, ownerless: bool = False
    ) -> Examples:
        examples = replace(super().load_from(table, label_free, ownerless), inputs=self.inputs)
        if not self.tokens_per_client or examples.owners is None or label_free:
            return examples
        counts = self._token_counts(examples)
        totals = earlier_sums(counts, examples.owners) + counts
        return examples.take(np.flatnonzero(totals <= self.tokens_per_client))

    def _token_counts(self, examples: Examples) -> Indices:
        """Returns each example's number of tokens `[N]`, over all inputs of tokens.

        If a mask of an input's shape is declared, only tokens that it marks by 1 count.
        """
        x = examples.x[torch.arange(len(examples))]
        values = {X: x} if by_position(self.inputs) else by_name(x, self.inputs)
        counts = np.zeros(len(examples), dtype=np.int64)
        for each in self.inputs.values():
            if each.tokens:
                masks = [n for n, m in self.inputs.items() if m.mask and m.shape == each.shape]
                counts += values[masks[0]].flatten(1).sum(1).numpy() if masks else each.size
        return counts


class Table(DeclaredTable):
    """A table in a CSV, Parquet or npz file. x `[N, features]` in [-1, 1].

    An npz file may contain images `[N, *shape]`.

    `features` maps columns of numbers (or patterns such as "pixel*") to their bounds [low, high],
    `dates` columns of dates to their first and last day, and `categories` columns of words to their
    values, each of which becomes a 0/1 feature. `outside` is the treatment of numbers beyond their
    bounds and of undeclared values: "clip" replaces them by the bound, or by no category; "refuse"
    refuses the table.

    `missing` replaces empty cells: by one number for all features (empty categories then count as
    no category, and empty dates are refused), or by column, by a number, a date, or "none" for a
    category. "refuse" refuses tables with empty cells. `missing_words`, such as "unknown", count as
    empty cells. `encoding`, `delimiter` and `decimal` are those of a CSV file.

    `label` is one column, with `labels` (its values), `classes` (integers from 0) or `label_bounds`
    (a number to predict), or several columns of 0 and 1. A number to predict is clipped to its
    bounds also in scores: choose wide bounds. `client` names the column that identifies clients;
    without it, partition the rows by "iid" or another simulation. `site` names the column that
    identifies sites. `test_path` is a public table with the same columns.
    """

    path: str = Field(examples=["."])
    """A CSV, Parquet or npz file."""
    delimiter: str = Field(",", min_length=1, max_length=1)
    """Delimiter between the cells of a CSV file."""
    decimal: Literal[".", ","] = "."
    """Decimal mark of a CSV file."""
    encoding: Annotated[str, AfterValidator(known_encoding)] = "utf-8"
    """Encoding of a CSV file."""
    test_path: str = ""
    """A public table with the same columns: the test set."""

    @property
    def squared_norm(self) -> float | None:
        """The bound of `DeclaredTable`; None for an npz file, which may contain arrays."""
        return None if Path(self.path).suffix.lower() == ".npz" else super().squared_norm

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns two origins: of the client column's name, and of the location of `path`."""
        return origins_of_file(self.client, self.path)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self.load_from(self._file(self.path))

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        if not self.test_path:
            return None
        return self.load_from(self._file(self.test_path), ownerless=True)

    def load_inputs(self) -> Examples:
        """Returns the table's examples; labels, client and site columns may be missing."""
        return self.load_from(self._file(self.path), label_free=True)

    @property
    def dialect(self) -> Dialect:
        """The dialect of the table's files."""
        return Dialect(self.delimiter, self.encoding, self.decimal, tuple(self.missing_words))

    def _file(self, path: str) -> TableFile:
        return TableFile(Path(path), self.dialect)


def origins_of_file(client: str, path: str) -> tuple[str, ...]:
    """Returns two origins (`Source.sources`): of the client column's name, and of the location."""
    place = hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()
    return (f"table: {client}", f"table at {place[:16]}")
