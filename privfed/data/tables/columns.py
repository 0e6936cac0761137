"""The columns of a CSV or Parquet file or of an npz archive, by name. Nothing is unpickled.

A file's words are private. So are the names of its columns, since in a file without a header they
are the first row. Messages therefore name a column as the run file does: a mapping `Called` has
this name for each column.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privfed.core.errors import Refused, public_text, refuse_too_large
from privfed.data.tables import delimited
from privfed.data.tables.cells import Words
from privfed.data.tables.conversion import as_coded_words, as_numbers, as_words, type_name
from privfed.data.tables.delimited import Dialect

if TYPE_CHECKING:
    import pyarrow


_ENCRYPTED = 0x1
"""The bit of a zip member's flags that marks encryption."""


def array_names(path: Path) -> list[str]:
    """Returns the names of the arrays in an npz archive. The names are private."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(
    path: Path, numbers: Mapping[str, str], words: Mapping[str, str]
) -> tuple[int, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Reads arrays of an npz archive.

    Args:
      path: the archive.
      numbers: name of each array of numbers -> its name in messages.
      words: name of each array of words or integers -> its name in messages.

    Returns:
      The number of rows N, arrays of numbers `[N, *]`, and arrays of words or integers `[N]`.

    Raises:
      Refused: if an array cannot be read, has another type or shape, or lengths differ.
    """
    display = {**numbers, **words}
    arrays = {name: read_array(path, name, called) for name, called in display.items()}
    lengths = {display[name]: len(array) if array.ndim else -1 for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        shown = ", ".join(
            f"{called} has {length} rows" if length >= 0 else f"{called} is a single number"
            for called, length in lengths.items()
        )
        raise Refused(
            f"data: {path}: arrays differ in their number of rows ({shown}); save arrays with one "
            "entry per row"
        )
    for name, called in numbers.items():
        if arrays[name].dtype.kind not in "buif" or arrays[name].dtype.itemsize > 8:
            raise Refused(
                f"data: {path}: the array {called} has type {arrays[name].dtype.name}; expected "
                "numbers"
            )
    for name, called in words.items():
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iuUb":
            raise Refused(
                f"data: {path}: the array {called} has type {arrays[name].dtype.name} and shape "
                f"{arrays[name].shape}; expected one word or integer per row, shape (N,)"
            )
    rows = next(iter(lengths.values()), 0)
    return rows, {n: arrays[n] for n in numbers}, {n: arrays[n] for n in words}


def read_array(path: Path, name: str, called: str) -> np.ndarray:
    """Returns the array `name` of an npz archive, memory-mapped if it is not compressed.

    Raises `Refused`, calling the array `called`, if it is missing, encrypted, damaged, too large to
    decompress, or of Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo(f"{name}.npy")
            if member.flag_bits & _ENCRYPTED:
                raise Refused(
                    f"data: {path}: {called} is encrypted; save the archive without a password"
                )
            return _member(path, archive, member, called)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # libraries raise any error on damaged files
        raise Refused(
            f"data: {path}: the array {called} is missing, damaged or was not saved by NumPy "
            f"({public_text(error)}); save the archive again",
            private=str(error),
        ) from None


def _member(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, called: str
) -> np.ndarray:
    """Returns the array of one member; its header is checked before anything is read or mapped.

    Raises `Refused` for Python objects, a truncated or unknown form, or an array too large to
    unpack.
    """
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise Refused(
                f"data: {path}: the array {called} has another npy version; expected 1 or 2",
                private=f"it is of version {version}",
            )
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise Refused(
                f"data: {path}: {called} holds Python objects, which privfed never unpickles; save "
                "the array as numbers or text"
            )
        begins = file.tell()
    if begins + dtype.itemsize * int(np.prod(shape, dtype=object)) != member.file_size:
        raise Refused(
            f"data: {path}: the array {called} is truncated: it has another number of bytes than "
            "its header declares; save the archive again",
            private=f"it declares shape {shape} of {dtype}, in {member.file_size} bytes",
        )
    if member.compress_type != zipfile.ZIP_STORED or not np.prod(shape):
        instead = "save the archive by numpy.savez, which stores arrays in the file"
        refuse_too_large(f"data: {path}: {called}", member.file_size, instead)
        with archive.open(member) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    with path.open("rb") as raw:
        raw.seek(member.header_offset + 26)
        name_length, extra = np.frombuffer(raw.read(4), "<u2").tolist()
    start = member.header_offset + 30 + name_length + extra + begins
    return np.memmap(
        str(path), dtype, mode="c", offset=start, shape=shape, order="F" if fortran else "C"
    )


_PARQUET = {".parquet", ".pq"}
NO_TEXT = {".npz", *_PARQUET}
"""The suffixes of files that have neither a delimiter nor an encoding."""
Called = Mapping[str, str]
"""The name in messages of each column by its name in the file: as declared, or by its index."""


@dataclass(frozen=True)
class Columns:
    """The columns that were read from a table.

    Attributes:
      rows: number of rows N.
      numbers: columns of numbers by name: float64 `[N]` with NaN for empty cells; from an npz
        archive, arrays `[N, *]` of any real type.
      words: columns of words by name.
    """

    rows: int
    numbers: dict[str, np.ndarray]
    words: dict[str, Words]


def column_names(path: Path, dialect: Dialect, skips: bool = False) -> list[str]:
    """Returns the names of a file's columns in order, which are private.

    Args:
      path: a CSV, Parquet or npz file.
      dialect: syntax of a CSV file.
      skips: whether rows of a CSV file with too few or too many cells are skipped, not refused.

    Raises:
      Refused: if the file cannot be read, or has no column, or two columns with the same name.
    """
    with _readable(path, dialect):
        if path.suffix.lower() == ".npz":
            names = array_names(path)
        elif path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            names = list(parquet.read_schema(path).names)
        else:
            names = delimited.csv_header(path, dialect, skips)
    if not names:
        raise Refused(f"data: {path} has no column; expected at least one")
    refuse_repeated_names(names, str(path))
    return names


def refuse_repeated_names(names: Sequence[str], table: str) -> None:
    """Raises `Refused` if two columns of the table called `table` have the same name."""
    places: dict[str, int] = {}
    for second, name in enumerate(names, start=1):
        first = places.setdefault(name, second)
        if first != second:
            raise Refused(
                f"data: {table} has the same name for columns {first} and {second}; give columns "
                "different names",
                private=f"both are {name!r}",
            )


def read_columns(path: Path, numbers: Called, words: Called, dialect: Dialect) -> Columns:
    """Returns the columns `numbers` and `words` of a file, which must exist.

    Raises `Refused` if the file cannot be read, or a column of `numbers` is not numeric.
    """
    with _readable(path, dialect):
        if path.suffix.lower() == ".npz":
            rows, arrays, coded = read_arrays(path, numbers, words)
            return Columns(rows, arrays, {n: as_coded_words(array) for n, array in coded.items()})
        if path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            table = parquet.read_table(path, columns=[*numbers, *words], memory_map=True)
        else:
            table = delimited.read_csv(path, numbers, words, dialect)
        return arrow_columns(table, numbers, words, str(path), dialect)


def read_rows(path: Path, names: Sequence[str], dialect: Dialect) -> pyarrow.Table:
    """Returns the columns `names` of a CSV file as text, or of a Parquet file in their types.

    Rows of a CSV file with too few or too many cells are skipped. Raises `Refused` if the file
    cannot be read.
    """
    with _readable(path, dialect):
        if path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            return parquet.read_table(path, columns=[*names])
        return delimited.read_csv(path, (), names, dialect, skips=True)


def arrow_columns(
    table: pyarrow.Table, numbers: Called, words: Called, called: str, dialect: Dialect
) -> Columns:
    """Returns the columns `numbers` and `words` of an Arrow table, which messages call `called`.

    Raises `Refused` if a column of `numbers` is not numeric.
    """
    return Columns(
        table.num_rows,
        {name: as_numbers(table.column(name), numbers[name], called, dialect) for name in numbers},
        {name: as_words(table.column(name)) for name in words},
    )


def sample_columns(
    path: Path, names: Sequence[str], dialect: Dialect
) -> dict[str, np.ndarray | Words | str]:
    """Returns every column of a public sample, by name.

    A column is an array of numbers if all its non-empty cells are numbers, otherwise words (also
    for dates), or the name of its type if it has no text form. Raises `Refused` if the file cannot
    be read.
    """
    if path.suffix.lower() == ".npz":
        return {name: _sample_array(path, name) for name in names}
    with _readable(path, dialect):
        if path.suffix.lower() in _PARQUET:
            from pyarrow import parquet

            table = parquet.read_table(path, memory_map=True)
        else:
            table = delimited.read_csv(path, (), names, dialect)
    return sample_of_arrow(table, str(path), dialect)


def sample_of_arrow(
    table: pyarrow.Table, called: str, dialect: Dialect
) -> dict[str, np.ndarray | Words | str]:
    """Returns every column of an Arrow table by name, in the forms of `sample_columns`.

    Messages call the table `called`.
    """
    names = table.column_names
    return {name: _sample_column(table.column(name), called, dialect) for name in names}


def _sample_column(
    column: pyarrow.ChunkedArray, called: str, dialect: Dialect
) -> np.ndarray | Words | str:
    import pyarrow

    try:
        return as_numbers(column, "", called, dialect)
    except Refused:
        pass
    try:
        return as_words(column)
    except pyarrow.ArrowException:  # it has no text form
        return type_name(column.type)


def _sample_array(path: Path, name: str) -> np.ndarray | Words | str:
    try:
        return read_columns(path, {name: repr(name)}, {}, Dialect()).numbers[name]
    except Refused:
        try:
            return read_columns(path, {}, {name: repr(name)}, Dialect()).words[name]
        except Refused:
            return "no numbers, and not one word per row"


@contextlib.contextmanager
def _readable(path: Path, dialect: Dialect) -> Iterator[None]:
    """Returns a context that converts errors of the file to `Refused`, except lack of memory."""
    if not path.is_file():
        problem = "is a FIFO or a device" if path.exists() else "does not exist"
        problem = "is a folder" if path.is_dir() else problem
        raise Refused(
            f"data: {path} {problem} (from {Path.cwd()}); expected a CSV, Parquet or npz file"
        )
    try:
        yield
    except (Refused, MemoryError):
        raise
    except Exception as error:  # libraries raise any error on damaged files
        where, why = delimited.csv_problem(path, error, dialect)
        why = why or f"{public_text(error)}; expected a CSV, Parquet or npz file"
        raise Refused(f"data: {path}{where} cannot be read: {why}", private=str(error)) from None
