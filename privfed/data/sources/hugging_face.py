"""Data sets of Hugging Face on disk, with a column that says whose a row is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privfed.data.federation import Examples
from privfed.data.forms.arrow_columns import (
    array_cells,
    holds_pictures,
    label_cells,
    picture_cells,
    refuse_no_words,
    text_cells,
)
from privfed.data.forms.pictures import SHAPE, is_of_pictures
from privfed.data.forms.raw import PlaceOf, RawExamples
from privfed.data.pieces import Pieces
from privfed.data.sources.declared_examples import DeclaredExamples
from privfed.data.sources.hugging_face_files import read_split, split_files
from privfed.data.tables.cells import CellRules
from privfed.data.tables.conversion import as_words
from privfed.errors import Refused
from privfed.streams import Streams

if TYPE_CHECKING:
    import pyarrow


class HuggingFace(DeclaredExamples):
    """A Hugging Face data set on disk: images, arrays of numbers, or text, by a client column.

    `path` is a folder as `datasets`' `save_to_disk` writes it, a folder of Parquet files, or one
    such file; nothing is fetched. x, `label` and `client` name columns. Everything is declared: the
    `shape` of an image as [channels, height, width], the `bounds` of numbers (an image's are
    [0, 255]), `classes` or `labels`; of texts a `vocabulary` of characters, or a public file of
    `words`. Numbers are scaled onto [-1, 1]. Tables of several columns of features are of the
    source `table`.

    `test_split` names a public split, of this folder or of `test_path`.
    """

    path: str
    """A saved data set, a folder of Parquet files, or a file."""
    split: str = "train"
    """Which split is read: Parquet files are named for it, or lie in a folder of its name."""
    client: str = ""
    """The column that says whose a row is. Without it, rows are dealt by a partition."""
    resize: bool = False
    """Whether images of another size are resized; else they are refused."""
    test_path: str = ""
    """Where a public test set lies, if elsewhere."""
    test_split: str = ""
    """Which split is a public test set."""

    def sources(self, seed: int) -> tuple[str, ...]:
        """The client column, as of a table in a file; and any table: who knows where it lies."""
        return (f"table: {self.client}", "table*")

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(self.path, self.split)

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        if not (self.test_path or self.test_split):
            return None
        path, split = self.test_path or self.path, self.test_split or self.split
        if split_files(Path(path), split) == split_files(Path(self.path), self.split):
            raise Refused(
                f"data.test_split is {self.test_split!r}, but {path} holds one split alone, which "
                "trains; expected another, or data.test_path"
            )
        return self._load(path, split)

    def _load(self, path: str, split: str) -> Examples:
        names = dict.fromkeys(filter(None, (self.x, self.label, self.client)))
        table = read_split(Path(path), split, list(names))
        if not table.num_rows:
            raise Refused(f"data: {path} holds no row")

        def place(row: int) -> str:
            return f"{path}, row {row + 1}"

        for name in filter(None, (self.label, self.client)):
            refuse_no_words(table.column(name), repr(name))
        x = self._features(table.column(self.x), place)
        y = label_cells(table.column(self.label)) if self.label else None
        if not self.client:
            return self.of_declared_form(RawExamples(x, y, place))
        rules = CellRules(path, "refuse", ())
        owners, clients = rules.owners(as_words(table.column(self.client)), repr(self.client))
        return self.of_declared_form(RawExamples(x, y, place, owners, clients))

    def _features(
        self, column: pyarrow.ChunkedArray, place: PlaceOf
    ) -> np.ndarray | Pieces | list[str]:
        """What the column of features holds. Raises `Refused` where it is not as declared."""
        if self.text:
            return text_cells(column, repr(self.x), place)
        if not holds_pictures(column.type):
            return array_cells(column, self.array_form.stored, repr(self.x), place)
        if not is_of_pictures(self.shape):
            raise Refused(
                f"data.shape is {self.shape}, but the column {self.x!r} holds images; expected "
                f"{SHAPE}"
            )
        return picture_cells(column, self.shape, self.resize, place)
