"""Columns of a CSV or Parquet file or of an npz archive, by name. Nothing is unpickled.

A file's own words are private, the names of its columns too: without a header, the first row stands
there. So messages call a column as the run file does, which is what `Called` holds.
"""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privfed.errors import Refused, public_text
from privfed.federation import Indices

if TYPE_CHECKING:
    import pyarrow

_PARQUET = {".parquet", ".pq"}
Called = Mapping[str, str]
"""What messages call each column: by the name that was declared, or by its place."""
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None"]


@dataclass(frozen=True)
class Words:
    """A column of text: `values[codes[i]]` in row i; code -1 where there is nothing."""

    codes: Indices
    values: list[str]

    def first(self, wrong: np.ndarray) -> int:
        """The first row, from 1, where `wrong` `[N]` holds."""
        return int(np.flatnonzero(wrong)[0]) + 1

    def at(self, row: int) -> str:
        """What stands in `row`, from 1, as a message says it."""
        code = self.codes[row - 1]
        return "empty" if code < 0 else repr(self.values[code])


@dataclass(frozen=True)
class Columns:
    """Numbers `[N]` float64, NaN where there is nothing (arrays of an npz: `[N, *]`), and words."""

    rows: int
    numbers: dict[str, np.ndarray]
    words: dict[str, Words]


def header(path: Path, delimiter: str) -> list[str]:
    """The names of the columns, in order: private. Raises `Refused` for none, or one twice."""
    with _readable(path):
        if path.suffix.lower() == ".npz":
            with zipfile.ZipFile(path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
        elif path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            names = parquet.read_schema(path).names
        else:
            names = _csv_header(path, delimiter)
    names = list(names)
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


def read(path: Path, numbers: Called, words: Called, delimiter: str) -> Columns:
    """The columns asked for, which are there. Raises `Refused` for cells of another kind."""
    with _readable(path):
        if path.suffix.lower() == ".npz":
            return _npz(path, numbers, words)
        if path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            table = parquet.read_table(path, columns=[*numbers, *words], memory_map=True)
        else:
            table = _csv(path, numbers, words, delimiter)
        return Columns(
            table.num_rows,
            {
                name: _as_numbers(table.column(name), called, path)
                for name, called in numbers.items()
            },
            {name: _as_words(table.column(name)) for name in words},
        )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
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
        text = str(error)
        where, why = _of_csv(text)
        if isinstance(error, UnicodeDecodeError):
            why = _NOT_UTF8
        raise Refused(
            f"data: {path}{where} cannot be read: {why or public_text(error)}", private=text
        ) from None


_NOT_UTF8 = "it is not UTF-8; save it as UTF-8"
_CSV_PROBLEM = re.compile(
    r"(?:In CSV column #(?P<column>\d+): )?(?:CSV parse error: )?(?:Row #(?P<row>\d+): )?"
    r"(?P<why>Empty CSV file|CSV conversion error to string: invalid UTF8 data"
    r"|Expected (?P<expected>\d+) columns, got (?P<got>\d+))"
)


def _of_csv(text: str) -> tuple[str, str]:
    """Where pyarrow saw a problem, and which: no word of its text, which quotes the row."""
    match = _CSV_PROBLEM.match(text)
    if match is None:
        return "", ""
    where = f", row {int(match['row']) - 1}" if match["row"] else ""  # it counts the header
    where += f", column {int(match['column']) + 1}" if match["column"] else ""
    if match["expected"]:
        return where, (
            f"there are {match['got']} columns, expected {match['expected']}; quote cells that "
            "hold the delimiter, or name another data.delimiter"
        )
    return where, _NOT_UTF8 if "UTF8" in match["why"] else "it is empty"


def _csv_header(path: Path, delimiter: str) -> list[str]:
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    one_thread = csv.ReadOptions(use_threads=False)  # which knows the row of a problem
    with csv.open_csv(path, one_thread, parse) as reader:
        names: list[str] = reader.schema.names
    return names


def _csv(path: Path, numbers: Called, words: Called, delimiter: str) -> pyarrow.Table:
    import pyarrow
    from pyarrow import csv

    types = {name: pyarrow.float64() for name in numbers}
    types |= {name: pyarrow.string() for name in words}
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def parsed(types: dict[str, Any], threads: bool) -> pyarrow.Table:
        convert = csv.ConvertOptions(
            column_types=types, include_columns=list(types), null_values=MISSING
        )
        reading = csv.ReadOptions(use_threads=threads)
        return csv.read_csv(path, reading, parse, convert)

    try:
        return parsed(types, threads=True)
    except pyarrow.ArrowInvalid as error:
        # Once more: one thread knows the row, and words say below which cell is no number.
        words_only = "conversion error to double" in str(error)
        return parsed(dict.fromkeys(types, pyarrow.string()) if words_only else types, False)


def _as_numbers(column: pyarrow.ChunkedArray, called: str, path: Path) -> np.ndarray:
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
                _number(cell, f"data: {path}, row {row}: column {called}")
                for row, cell in enumerate(column.to_pylist(), start=1)
            ],
            dtype=np.float64,
        )
    numbers = compute.cast(column, pyarrow.float64(), safe=False)
    return np.array(compute.fill_null(numbers, float("nan")).to_numpy(), dtype=np.float64)


def _outer(kind: pyarrow.DataType) -> str:
    """The type without what it is made of, which may have names."""
    return re.split(r"[<\[(]", str(kind))[0]


def _number(cell: str | None, where: str) -> float:
    """NaN where there is nothing. What Python alone takes for a number (1_000) is none."""
    if cell is None or cell in MISSING:
        return float("nan")
    try:
        if cell.isascii() and "_" not in cell:
            return float(cell)
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


def _npz(path: Path, numbers: Called, words: Called) -> Columns:
    asked = {**numbers, **words}
    found = {name: _array(path, name, called) for name, called in asked.items()}
    lengths = {asked[name]: len(array) if array.ndim else -1 for name, array in found.items()}
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        shown = ", ".join(f"{called}: {length}" for called, length in lengths.items())
        raise Refused(f"data: {path} holds arrays of different lengths: {shown}")
    for name, called in numbers.items():
        if found[name].dtype.kind not in "buif" or found[name].dtype.itemsize > 8:
            raise Refused(
                f"data: {path}: {called} is of type {found[name].dtype.name}; expected numbers"
            )
    for name, called in words.items():
        if found[name].ndim != 1 or found[name].dtype.kind not in "iuUb":
            raise Refused(
                f"data: {path}: {called} is of type {found[name].dtype.name} and shape "
                f"{found[name].shape}; expected one word or whole number per example"
            )
    return Columns(
        next(iter(lengths.values()), 0),
        {name: found[name] for name in numbers},
        {name: _coded(found[name]) for name in words},
    )


def _coded(array: np.ndarray) -> Words:
    values, codes = np.unique(array, return_inverse=True)
    texts = [str(value) for value in values.tolist()]
    codes = codes.astype(np.int64)
    if "" in texts:
        codes[codes == texts.index("")] = -1
    return Words(codes, texts)


def _array(path: Path, name: str, called: str) -> np.ndarray:
    """One array of an npz: mapped (privately) where it is not compressed, else read."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read_header is None:
                raise Refused(
                    f"data: {path}: {called} is of an unknown npy version; expected 1 or 2",
                    private=f"it is of version {version}",
                )
            shape, fortran, dtype = read_header(file)
            if dtype.hasobject:
                raise Refused(
                    f"data: {path}: {called} holds Python objects, which privfed never unpickles; "
                    "save it as numbers or text"
                )
            begins = file.tell()
        if member.compress_type != zipfile.ZIP_STORED or not np.prod(shape):
            with np.load(path, allow_pickle=False) as whole:
                return np.asarray(whole[name])
    with path.open("rb") as raw:
        raw.seek(member.header_offset + 26)
        name_length, extra = np.frombuffer(raw.read(4), "<u2").tolist()
    start = member.header_offset + 30 + name_length + extra + begins
    return np.memmap(
        str(path), dtype, mode="c", offset=start, shape=shape, order="F" if fortran else "C"
    )
