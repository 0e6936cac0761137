"""Columns of a CSV or Parquet file or of an npz archive, by name. Nothing is unpickled.

A file's own words are private, the names of its columns too: without a header, the first row stands
there. So messages call a column as the run file does, which is what `Called` holds.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privfed.data.tables import archive, delimited
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.words import Words
from privfed.errors import Refused, public_text

if TYPE_CHECKING:
    import pyarrow

_PARQUET = {".parquet", ".pq"}
NO_TEXT = {".npz", *_PARQUET}
"""What files are called that have neither a delimiter nor an encoding."""
Called = Mapping[str, str]
"""What messages call each column: by the name that was declared, or by its place."""


@dataclass(frozen=True)
class Columns:
    """Numbers `[N]` float64, NaN where there is nothing (arrays of an npz: `[N, *]`), and words."""

    rows: int
    numbers: dict[str, np.ndarray]
    words: dict[str, Words]


def header(path: Path, dialect: Dialect) -> list[str]:
    """The names of the columns, in order: private. Raises `Refused` for none, or one twice."""
    with _readable(path, dialect):
        if path.suffix.lower() == ".npz":
            names = archive.header(path)
        elif path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            names = list(parquet.read_schema(path).names)
        else:
            names = delimited.header(path, dialect)
    if not names:
        raise Refused(f"data: {path} has no column")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        first, second = [n for n, name in enumerate(names, start=1) if name == twice][:2]
        raise Refused(
            f"data: {path} calls its columns {first} and {second} alike; expected different names",
            private=f"both are {twice!r}",
        )
    return names


def read(path: Path, numbers: Called, words: Called, dialect: Dialect) -> Columns:
    """The columns asked for, which are there. Raises `Refused` for cells of another kind."""
    with _readable(path, dialect):
        if path.suffix.lower() == ".npz":
            rows, numeric, coded = archive.read(path, numbers, words)
            return Columns(rows, numeric, {name: _coded(array) for name, array in coded.items()})
        if path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            table = parquet.read_table(path, columns=[*numbers, *words], memory_map=True)
        else:
            table = delimited.read(path, numbers, words, dialect)
        return Columns(
            table.num_rows,
            {
                name: _as_numbers(table.column(name), called, path, dialect)
                for name, called in numbers.items()
            },
            {name: _as_words(table.column(name)) for name in words},
        )


def each(path: Path, names: Sequence[str], dialect: Dialect) -> dict[str, np.ndarray | Words | str]:
    """Every column of a public sample: numbers where all cells are, else words, else its type.

    Dates are words. Raises `Refused`.
    """
    if path.suffix.lower() == ".npz":
        return {name: _of_archive(path, name) for name in names}
    with _readable(path, dialect):
        if path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            table = parquet.read_table(path, memory_map=True)
        else:
            table = delimited.read(path, (), names, dialect)
    return {name: _either(table.column(name), path, dialect) for name in names}


def _either(column: pyarrow.ChunkedArray, path: Path, dialect: Dialect) -> np.ndarray | Words | str:
    import pyarrow

    try:
        return _as_numbers(column, "", path, dialect)
    except Refused:
        pass
    try:
        return _as_words(column)
    except pyarrow.ArrowException:  # no text can be made of it
        return _outer(column.type)


def _of_archive(path: Path, name: str) -> np.ndarray | Words | str:
    try:
        return read(path, {name: repr(name)}, {}, Dialect()).numbers[name]
    except Refused:
        try:
            return read(path, {}, {name: repr(name)}, Dialect()).words[name]
        except Refused:
            return "no numbers, and not one word per row"


@contextlib.contextmanager
def _readable(path: Path, dialect: Dialect) -> Iterator[None]:
    """Whatever is wrong with the file as a file, in one message."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise Refused(
            f"data: {path} {found} (from {Path.cwd()}); expected a CSV, Parquet or npz file"
        )
    try:
        yield
    except (Refused, MemoryError):
        raise
    except Exception as error:  # of libraries that read what anybody may have written
        where, why = delimited.problem(path, error, dialect)
        raise Refused(
            f"data: {path}{where} cannot be read: {why or public_text(error)}", private=str(error)
        ) from None


def _as_numbers(
    column: pyarrow.ChunkedArray, called: str, path: Path, dialect: Dialect
) -> np.ndarray:
    import pyarrow
    from pyarrow import compute

    kind = column.type
    if isinstance(kind, pyarrow.DictionaryType):
        column = column.cast(kind.value_type)
    elif not (
        pyarrow.types.is_null(kind)
        or pyarrow.types.is_boolean(kind)
        or pyarrow.types.is_integer(kind)
        or pyarrow.types.is_floating(kind)
        or pyarrow.types.is_decimal(kind)
        or pyarrow.types.is_string(kind)
        or pyarrow.types.is_large_string(kind)
        or kind == getattr(pyarrow, "string_view", pyarrow.string)()
    ):
        raise Refused(
            f"data: {path}: column {called} is of type {_outer(kind)}; expected numbers",
            private=f"it is of type {kind}",
        )
    if pyarrow.types.is_boolean(column.type):
        column = compute.cast(column, pyarrow.uint8())
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        return np.array(
            [
                number(cell, dialect, f"data: {path}, row {row}: column {called}")
                for row, cell in enumerate(column.to_pylist(), start=1)
            ],
            dtype=np.float64,
        )
    numbers = compute.cast(column, pyarrow.float64(), safe=False)
    return np.array(compute.fill_null(numbers, float("nan")).to_numpy(), dtype=np.float64)


def _outer(kind: pyarrow.DataType) -> str:
    """The type without what it is made of, which may have names."""
    return re.split(r"[<\[(]", str(kind))[0]


def number(cell: str | None, dialect: Dialect, where: str) -> float:
    """NaN where there is nothing. What Python alone takes for a number (1_000) is none."""
    if cell is None or cell in dialect.missing:
        return float("nan")
    try:
        if cell.isascii() and "_" not in cell:
            return float(dialect.with_point(cell))
    except ValueError:
        pass
    raise Refused(
        f"{where} holds no number; expected one (declare words in data.categories, or for the "
        "label in data.labels)",
        private=f"it holds {cell!r}",
    )


def _as_words(column: pyarrow.ChunkedArray) -> Words:
    import pyarrow
    from pyarrow import compute

    text = compute.cast(column, pyarrow.string()).combine_chunks().dictionary_encode()
    codes = np.array(compute.fill_null(text.indices, -1).to_numpy(), dtype=np.int64)
    values = text.dictionary.to_pylist()
    if "" in values:
        codes[codes == values.index("")] = -1
    return Words(codes, values)


def _coded(array: np.ndarray) -> Words:
    values, codes = np.unique(array, return_inverse=True)
    texts = [str(value) for value in values.tolist()]
    codes = codes.astype(np.int64)
    if "" in texts:
        codes[codes == texts.index("")] = -1
    return Words(codes, texts)
