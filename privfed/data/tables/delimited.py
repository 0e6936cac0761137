"""CSV files: their delimiter, their encoding, and the cells that count as empty.

The syntax of a private file is declared. It is inferred only for public samples, and for hints in
refusals.
"""

from __future__ import annotations

import codecs
import csv as csv_text
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None"]
"""Words that count as empty cells in a column of numbers or dates."""
_DELIMITERS = ",;\t|"
_FIRST_BYTES, _FIRST_ROWS = 1 << 16, 200
"""Bytes and rows of a file used to infer its delimiter."""
_LONGEST_ROW = 1 << 20
"""Block size of pyarrow in bytes; no row may be longer."""
_ENCODINGS = ("utf-8", "utf-16", "cp1252", "latin-1")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Dialect:
    """The syntax of a CSV file, and the words that count as empty cells in any format."""

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    missing_words: tuple[str, ...] = ()

    @cached_property
    def missing(self) -> frozenset[str]:
        """Words that count as empty in a column of numbers or dates: built-in and declared ones."""
        return frozenset({*MISSING, *self.missing_words})

    def with_point(self, number: str) -> str:
        """Returns `number` with "." as its decimal mark.

        If the declared mark is ",", a "." becomes "?", so that the text is not a number.
        """
        return number if self.decimal == "." else number.replace(".", "?").replace(",", ".")


def known_encoding(name: str) -> str:
    """Returns `name`. Raises `ValueError` unless it is a text encoding that Python knows."""
    try:
        "a,1\n".encode(name).decode(name)
    except (LookupError, UnicodeError, ValueError):
        raise ValueError(
            'expected the name of an encoding, for example "utf-8", "cp1252" or "latin-1"'
        ) from None
    return name


def delimiter_of(path: Path, encoding: str) -> str | None:
    """Infers the delimiter: a common one that divides the first rows into equally many cells.

    Of several, the one with most cells per row is returned; None if none gives two or more cells,
    or the file cannot be read.
    """
    try:
        start = unpacked(path, _FIRST_BYTES)
        text = start.decode(encoding, errors="replace").removeprefix("\ufeff")
    except (OSError, ValueError):
        return None
    widths = {mark: _width(text, mark, cut=len(start) == _FIRST_BYTES) for mark in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda mark: widths[mark])
    return best if widths[best] > 1 else None


def unpacked(path: Path, length: int = -1) -> bytes:
    """Returns the first `length` bytes of a file, decompressed; all if `length` is -1.

    Raises `OSError` if the file cannot be read.
    """
    import pyarrow

    with pyarrow.input_stream(str(path), compression="detect") as stream:
        return bytes(stream.read() if length < 0 else stream.read(length))


def _width(text: str, delimiter: str, cut: bool) -> int:
    """Returns the number of cells into which `delimiter` divides each of the first rows.

    It is 0 if these rows differ, or the text is not valid CSV. If the text was `cut`, its last row
    may be incomplete and does not count.
    """
    rows = csv_text.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        widths = [len(row) for row, _ in zip(rows, range(_FIRST_ROWS), strict=False) if row]
    except csv_text.Error:
        return 0
    complete = widths[:-1] if cut else widths
    return complete[0] if len(set(complete)) == 1 else 0


def encoding_of(sample: Path) -> str:
    """Returns the first of a few common encodings that decodes a public sample without an error."""
    sample_bytes = unpacked(sample)
    for name in _ENCODINGS:
        if name == "utf-16" and not sample_bytes.startswith(_UTF16_MARKS):
            continue
        try:
            sample_bytes.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return _ENCODINGS[-1]  # every byte is valid in it


def csv_header(path: Path, dialect: Dialect, skips: bool = False) -> list[str]:
    """Returns the names in a file's first row, which are private; for `skips`, see `read_csv`."""
    from pyarrow import csv

    one_thread = _reading(dialect, threads=False)  # then errors state the row
    with csv.open_csv(path, one_thread, _parsing(dialect, skips)) as reader:
        names: list[str] = reader.schema.names
    return names


def read_csv(
    path: Path,
    numbers: Iterable[str],
    words: Iterable[str],
    dialect: Dialect,
    skips: bool = False,
) -> pyarrow.Table:
    """Returns the columns `numbers` (float64) and `words` (text) of a CSV file.

    If a cell of `numbers` is not a number, all columns are text. If `skips` is true, rows with too
    few or too many cells are skipped.
    """
    import pyarrow
    from pyarrow import csv

    types = {name: pyarrow.float64() for name in numbers}
    types |= {name: pyarrow.string() for name in words}

    def parsed(types: dict[str, Any], threads: bool) -> pyarrow.Table:
        convert = csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=sorted(dialect.missing),
            decimal_point=dialect.decimal,
        )
        return csv.read_csv(path, _reading(dialect, threads), _parsing(dialect, skips), convert)

    try:
        return parsed(types, threads=True)
    except pyarrow.ArrowInvalid as error:
        # Reads again: a single thread reports the row, and later checks find the cell in the text.
        words_only = "conversion error to double" in str(error)
        return parsed(dict.fromkeys(types, pyarrow.string()) if words_only else types, False)


def _reading(dialect: Dialect, threads: bool) -> Any:
    from pyarrow import csv

    return csv.ReadOptions(use_threads=threads, block_size=_LONGEST_ROW, encoding=dialect.encoding)


def _parsing(dialect: Dialect, skips: bool = False) -> Any:
    from pyarrow import csv

    handler = (lambda row: "skip") if skips else None
    return csv.ParseOptions(
        delimiter=dialect.delimiter, newlines_in_values=True, invalid_row_handler=handler
    )


_PROBLEM = re.compile(
    r"(?:In CSV column #(?P<column>\d+): )?(?:CSV parse error: )?(?:Row #(?P<row>\d+): )?"
    r"(?P<why>Empty CSV file|CSV conversion error to string: invalid UTF8 data"
    r"|straddling object straddles two block boundaries"
    r"|Expected (?P<expected>\d+) columns, got (?P<got>\d+))"
)


def csv_problem(path: Path, error: Exception, dialect: Dialect) -> tuple[str, str]:
    """Returns position and description of a known pyarrow error; both are "" if it is unknown.

    The position is ", row …, column …" as far as it is known. The error's own text is left out,
    since it quotes the row.
    """
    utf16 = _is_utf16(path) and dialect.encoding == "utf-8"
    if isinstance(error, UnicodeError) or utf16:
        return "", _other_encoding(dialect)
    match = _PROBLEM.match(str(error))
    if match is None:
        return "", ""
    where = f", row {int(match['row']) - 1}" if match["row"] else ""  # it counts the header
    where += f", column {int(match['column']) + 1}" if match["column"] else ""
    if match["expected"]:
        return where, (
            f"there are {match['got']} columns, but {match['expected']} are expected; "
            f"{other_delimiter(path, dialect) or 'quote cells that contain the delimiter, or'} set "
            "another data.delimiter"
        )
    if "UTF8" in match["why"]:
        return where, _other_encoding(dialect)
    longer = len(unpacked(path, _LONGEST_ROW + 1)) > _LONGEST_ROW  # pyarrow then finds no first row
    if "straddling" in match["why"] or longer:
        return "", (
            f"a row is longer than {_LONGEST_ROW >> 20} MiB, or a quote is never closed; close the "
            "quote, or use fewer columns or a Parquet file"
        )
    return where, "the file is empty; expected a row of names, and rows of cells"


def _is_utf16(path: Path) -> bool:
    """Whether the file can be read and begins with a UTF-16 byte order mark."""
    try:
        return unpacked(path, len(_UTF16_MARKS[0])) in _UTF16_MARKS
    except OSError:
        return False


def _other_encoding(dialect: Dialect) -> str:
    named = {"utf-8": "UTF-8"}.get(dialect.encoding, dialect.encoding)
    return (
        f"the text is not {named}; save the file as UTF-8, or set data.encoding, for example to "
        '"cp1252"'
    )


def other_delimiter(path: Path, dialect: Dialect) -> str:
    """Returns a hint with the inferred delimiter; "" if it is the declared one, or none fits."""
    seems = delimiter_of(path, dialect.encoding)
    if seems is None or seems == dialect.delimiter:
        return ""
    return f"cells seem to be divided by {seems!r}:"
