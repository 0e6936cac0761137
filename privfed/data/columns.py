"""Columns of a CSV or Parquet file or of an npz archive, by name. Nothing is unpickled."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privfed.errors import Refused
from privfed.federation import Indices

if TYPE_CHECKING:
    import pyarrow

_PARQUET = {".parquet", ".pq"}
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
    """The names of the columns, in order. Raises `Refused` where there are none, or one twice."""
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
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        raise Refused(f"data: {path} has {f'two columns {twice[0]!r}' if twice else 'no column'}")
    return names


def read(path: Path, numbers: Sequence[str], words: Sequence[str], delimiter: str) -> Columns:
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
            {name: _as_numbers(table.column(name), name, path) for name in numbers},
            {name: _as_words(table.column(name)) for name in words},
        )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever is wrong with the file as a file, in one message."""
    from pyarrow import ArrowException

    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise Refused(
            f"data: {path} {found} (from {Path.cwd()}); expected a CSV, Parquet or npz file"
        )
    try:
        yield
    except Refused:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, ArrowException) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0].replace("\0", "")
        advice = ""
        if "UTF8" in first:
            advice = "; save it as UTF-8"
        elif "CSV parse error" in first:
            advice = "; quote cells that hold the delimiter, or name another data.delimiter"
        raise Refused(f"data: {path} cannot be read: {first}{advice}") from error


def _csv_header(path: Path, delimiter: str) -> list[str]:
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    one_thread = csv.ReadOptions(use_threads=False)  # which knows the row of a problem
    with csv.open_csv(path, one_thread, parse) as reader:
        names: list[str] = reader.schema.names
    return names


def _csv(path: Path, numbers: Sequence[str], words: Sequence[str], delimiter: str) -> pyarrow.Table:
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


def _as_numbers(column: pyarrow.ChunkedArray, name: str, path: Path) -> np.ndarray:
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
        raise Refused(f"data: {path}: column {name!r} is of type {kind}; expected numbers")
    if pyarrow.types.is_boolean(column.type):
        column = compute.cast(column, pyarrow.uint8())
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        for row, cell in enumerate(column.to_pylist(), start=1):
            try:
                float(cell if cell not in (None, *MISSING) else "nan")
            except ValueError as error:
                raise Refused(
                    f"data: {path}, row {row}: column {name!r} holds {cell!r}; expected a number "
                    "(declare words in data.categories, or for the label in data.labels)"
                ) from error
        column = compute.cast(
            compute.replace_with_mask(
                column.combine_chunks(),
                compute.is_in(column, pyarrow.array(MISSING)).combine_chunks(),
                pyarrow.scalar(None, column.type),
            ),
            pyarrow.float64(),
        )
    numbers = compute.cast(column, pyarrow.float64(), safe=False)
    return np.array(compute.fill_null(numbers, float("nan")).to_numpy(), dtype=np.float64)


def _as_words(column: pyarrow.ChunkedArray) -> Words:
    import pyarrow
    from pyarrow import compute

    text = compute.cast(column, pyarrow.string()).combine_chunks().dictionary_encode()
    codes = np.array(compute.fill_null(text.indices, -1).to_numpy(), dtype=np.int64)
    values = text.dictionary.to_pylist()
    if "" in values:
        codes[codes == values.index("")] = -1
    return Words(codes, values)


def _npz(path: Path, numbers: Sequence[str], words: Sequence[str]) -> Columns:
    found = {name: _array(path, name) for name in (*numbers, *words)}
    lengths = {name: len(array) if array.ndim else -1 for name, array in found.items()}
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        raise Refused(f"data: {path} holds arrays of different lengths: {lengths}")
    for name in numbers:
        if found[name].dtype.kind not in "buif" or found[name].dtype.itemsize > 8:
            raise Refused(f"data: {path}: {name!r} is of type {found[name].dtype}, not numbers")
    for name in words:
        if found[name].ndim != 1 or found[name].dtype.kind not in "iuUb":
            raise Refused(
                f"data: {path}: {name!r} is of type {found[name].dtype} and shape "
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


def _array(path: Path, name: str) -> np.ndarray:
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
                raise Refused(f"data: {path}: {name!r} is of npy version {version}")
            shape, fortran, dtype = read_header(file)
            if dtype.hasobject:
                raise Refused(
                    f"data: {path}: {name!r} holds Python objects, which privfed never unpickles; "
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
