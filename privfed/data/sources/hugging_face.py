"""Data sets of Hugging Face on disk, with a column of clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from accounting.documents import from_json
from privfed.core.errors import Refused, public_text
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.forms.arrays import PlaceOf, RawExamples
from privfed.data.forms.arrow_columns import (
    array_cells,
    holds_pictures,
    label_cells,
    picture_cells,
    refuse_no_words,
    text_cells,
)
from privfed.data.forms.pictures import SHAPE, is_of_pictures
from privfed.data.pieces import Pieces
from privfed.data.sources.declared_examples import DeclaredExamples
from privfed.data.tables.cells import CellRules
from privfed.data.tables.conversion import as_words

if TYPE_CHECKING:
    import pyarrow


_EXPECTED = "expected the output of datasets' save_to_disk() or to_parquet()"


def read_split(path: Path, split: str, names: Sequence[str]) -> pyarrow.Table:
    """Returns the columns `names` of a split (`split_files`) of a saved data set or Parquet files.

    Raises:
      Refused: if the split or a column is missing, or a file cannot be read.
    """
    import pyarrow

    with _readable(path):
        tables = [_columns(file, names) for file in split_files(path, split)]
        return pyarrow.concat_tables(tables)


def split_files(path: Path, split: str) -> list[Path]:
    """Returns the files of a split of the data at `path`, a file, a saved data set or a folder.

    If `path` is a file, or a data set that was saved without splits, `split` is ignored. Raises
    `Refused` if there is no such path or split.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Refused(
            f"data: {path} does not exist (from {Path.cwd()}); {_EXPECTED}. Nothing is fetched by "
            "name: save the data set first, datasets.load_dataset(NAME).save_to_disk(FOLDER), and "
            "set data.path = FOLDER"
        )
    folder = path / split if (path / "dataset_dict.json").is_file() else path
    files = _saved(folder) if (folder / "state.json").is_file() else _parquet(folder, split)
    if not files:
        raise Refused(f"data.split is {split!r}, but {path} holds no such split; {_EXPECTED}")
    return files


def _parquet(folder: Path, split: str) -> list[Path]:
    """Returns the Parquet files of a split.

    These are the *.parquet files in `folder`/SPLIT, and those named SPLIT or SPLIT-… in `folder` or
    its subfolder "data". If `split` is "", these are all Parquet files in `folder` and its
    subfolder "data".
    """
    patterns = (f"{split}.parquet", f"{split}-*.parquet") if split else ("*.parquet",)
    inside = sorted((folder / split).glob("*.parquet")) if split else []
    globs = [place.glob(each) for place in (folder, folder / "data") for each in patterns]
    return inside + sorted(file for files in globs for file in files)


def _saved(folder: Path) -> list[Path]:
    """Returns the files of a saved data set, as its state.json lists them.

    Raises `Refused` if state.json is invalid, or lists files outside of `folder`.
    """
    path = folder / "state.json"
    try:
        state = from_json(path.read_text(encoding="utf-8"))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(path, error) from None
    if not names or any(Path(name).name != name for name in names):
        raise Refused(f"data: {path} lists no files, or files of other folders; {_EXPECTED}")
    return [folder / name for name in names]


def _columns(file: Path, names: Sequence[str]) -> pyarrow.Table:
    """Returns the columns `names` of one file, memory-mapped if it is an Arrow file.

    An Arrow file states the positions of its values, and text in any file may not be UTF-8: both
    are validated before a value is used.
    """
    import pyarrow
    from pyarrow import parquet

    if file.suffix == ".arrow":
        table = pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all()
        _refuse_absent(file, table.column_names, names)
        columns = table.select(names)
    else:
        _refuse_absent(file, parquet.read_schema(file).names, names)
        columns = parquet.read_table(file, columns=[*names])
    columns.validate(full=True)
    return columns


def _refuse_absent(file: Path, present: Sequence[str], names: Sequence[str]) -> None:
    """Raises `Refused` unless each of `names` occurs exactly once among the columns `present`."""
    for name in names:
        if present.count(name) != 1:
            raise Refused(
                f"data: {file} has {present.count(name)} columns {name!r} among {len(present)} "
                "columns; expected one such column",
                private=f"they are {', '.join(present)}",
            )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Returns a context that converts errors of files to `Refused`, except lack of memory."""
    import pyarrow

    try:
        yield
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> Refused:
    return Refused(
        f"data: {path} cannot be read ({public_text(error)}); {_EXPECTED}", private=str(error)
    )


class HuggingFace(DeclaredExamples):
    """A Hugging Face data set on disk: images, arrays of numbers, or text, with a client column.

    `path` is a folder as written by `save_to_disk` of `datasets`, a folder of Parquet files, or one
    such file; nothing is downloaded. x, `label` and `client` name columns. Everything is declared:
    the `shape` of an image as [channels, height, width], the `bounds` of numbers (an image's are
    [0, 255]), `classes` or `labels`; for texts a `vocabulary` of characters, or a public file of
    `words`. Numbers are scaled onto [-1, 1]. For tables of several feature columns, use the source
    `table`.

    `test_split` names a public split, of this folder or of `test_path`.
    """

    path: str = Field(examples=["."])
    """A saved data set, a folder of Parquet files, or a file."""
    split: str = "train"
    """The split to read: Parquet files are named after it, or are in a folder of its name."""
    client: str = ""
    """Column that identifies the client of each row; if empty, a partition assigns rows."""
    resize: bool = False
    """Whether images of another size are resized; otherwise they are refused."""
    test_path: str = ""
    """Path of the public test set, if it is not `path`."""
    test_split: str = ""
    """Split of the public test set."""

    def sources(self, seed: int) -> tuple[str, ...]:
        """Returns two origins: "table: " with the name of the client column, and "table*"."""
        return (f"table: {self.client}", "table*")

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(self.path, self.split)

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        if not (self.test_path or self.test_split):
            return None
        path, split = self.test_path or self.path, self.test_split or self.split
        if split_files(Path(path), split) == split_files(Path(self.path), self.split):
            raise Refused(
                f"data.test_split is {self.test_split!r}, but {path} holds only one split, which "
                "is used for training; name another split, or set data.test_path"
            )
        return self._load(path, split)

    def _load(self, path: str, split: str) -> Examples:
        names = dict.fromkeys(filter(None, (self.x, self.label, self.client)))
        table = read_split(Path(path), split, list(names))
        if not table.num_rows:
            raise Refused(f"data: {path} holds no row; expected one row or more")

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
        """Returns the contents of the feature column. Raises `Refused` if it is not as declared."""
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
