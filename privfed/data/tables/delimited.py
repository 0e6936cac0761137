"""CSV files: what divides their cells, in which encoding, and which of them say nothing.

How a file is written is declared. What it seems to be is for public samples, and for refusals.
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
"""What stands in a column of numbers where there is none."""
_DELIMITERS = ",;\t|"
_START, _ROWS = 1 << 16, 200
"""How much of a file tells its delimiter: bytes, and rows."""
_ENCODINGS = ("utf-8", "utf-16", "cp1252", "latin-1")
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written, and which words of any table are empty cells."""

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    missing_words: tuple[str, ...] = ()

    @cached_property
    def missing(self) -> frozenset[str]:
        """All cells that hold no number."""
        return frozenset({*MISSING, *self.missing_words})

    def with_point(self, number: str) -> str:
        """`number` as Python writes it; no number, where it was written another way."""
        return number if self.decimal == "." else number.replace(".", "?").replace(",", ".")


def known_encoding(name: str) -> str:
    """`name`, where Python knows it as an encoding of text. Raises `ValueError`."""
    try:
        "a,1\n".encode(name).decode(name)
    except (LookupError, UnicodeError, ValueError):
        raise ValueError(
            'expected the name of an encoding, as "utf-8", "cp1252" or "latin-1"'
        ) from None
    return name


def delimiter_of(path: Path, encoding: str) -> str | None:
    """The character that divides the first rows into the same number of cells, two or more.

    Of several the one that finds most cells; None where none does.
    """
    try:
        start = content(path, _START)
        text = start.decode(encoding, errors="replace").removeprefix("\ufeff")
    except (OSError, ValueError):
        return None
    widths = {mark: _width(text, mark, cut=len(start) == _START) for mark in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda mark: widths[mark])
    return best if widths[best] > 1 else None


def content(path: Path, length: int = -1) -> bytes:
    """The first `length` bytes of a file (-1: all), unpacked. Raises `OSError`."""
    import pyarrow

    with pyarrow.input_stream(str(path), compression="detect") as stream:
        return bytes(stream.read() if length < 0 else stream.read(length))


def _width(text: str, delimiter: str, cut: bool) -> int:
    """Into how many cells `delimiter` divides each row; 0 where rows differ.

    Where the text was `cut`, its last row may be part of one.
    """
    rows = csv_text.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        widths = [len(row) for row, _ in zip(rows, range(_ROWS), strict=False) if row]
    except csv_text.Error:
        return 0
    whole = widths[:-1] if cut else widths
    return whole[0] if len(set(whole)) == 1 else 0


def encoding_of(sample: Path) -> str:
    """The first common encoding in which all of a public sample is text."""
    whole = content(sample)
    for name in _ENCODINGS:
        if name == "utf-16" and not whole.startswith(_MARKS):
            continue
        try:
            whole.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return _ENCODINGS[-1]  # in which every byte is a letter


def header(path: Path, dialect: Dialect) -> list[str]:
    """The names in the first row: private."""
    from pyarrow import csv

    one_thread = csv.ReadOptions(use_threads=False, encoding=dialect.encoding)  # knows the row
    with csv.open_csv(path, one_thread, _parsing(dialect)) as reader:
        names: list[str] = reader.schema.names
    return names


def read(
    path: Path, numbers: Iterable[str], words: Iterable[str], dialect: Dialect
) -> pyarrow.Table:
    """The columns `numbers` and `words`; of numbers as words too, where one of them is none."""
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
        reading = csv.ReadOptions(use_threads=threads, encoding=dialect.encoding)
        return csv.read_csv(path, reading, _parsing(dialect), convert)

    try:
        return parsed(types, threads=True)
    except pyarrow.ArrowInvalid as error:
        # Once more: one thread knows the row, and words say later which cell is no number.
        words_only = "conversion error to double" in str(error)
        return parsed(dict.fromkeys(types, pyarrow.string()) if words_only else types, False)


def _parsing(dialect: Dialect) -> Any:
    from pyarrow import csv

    return csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True)


_PROBLEM = re.compile(
    r"(?:In CSV column #(?P<column>\d+): )?(?:CSV parse error: )?(?:Row #(?P<row>\d+): )?"
    r"(?P<why>Empty CSV file|CSV conversion error to string: invalid UTF8 data"
    r"|Expected (?P<expected>\d+) columns, got (?P<got>\d+))"
)


def problem(path: Path, error: Exception, dialect: Dialect) -> tuple[str, str]:
    """Where pyarrow saw a problem, and which: no word of its text, which quotes the row.

    Both are empty for a problem of another kind.
    """
    marked = _is_utf16(path) and dialect.encoding == "utf-8"
    if isinstance(error, UnicodeError) or marked:
        return "", _other_encoding(dialect)
    match = _PROBLEM.match(str(error))
    if match is None:
        return "", ""
    where = f", row {int(match['row']) - 1}" if match["row"] else ""  # it counts the header
    where += f", column {int(match['column']) + 1}" if match["column"] else ""
    if match["expected"]:
        return where, (
            f"there are {match['got']} columns, expected {match['expected']}; "
            f"{other_delimiter(path, dialect) or 'quote cells that hold the delimiter, or'} "
            "name another data.delimiter"
        )
    return where, _other_encoding(dialect) if "UTF8" in match["why"] else "it is empty"


def _is_utf16(path: Path) -> bool:
    """Whether it begins as such text does, if it can be read at all."""
    try:
        return content(path, len(_MARKS[0])) in _MARKS
    except OSError:
        return False


def _other_encoding(dialect: Dialect) -> str:
    named = {"utf-8": "UTF-8"}.get(dialect.encoding, dialect.encoding)
    return (
        f'it is not {named}; save it as UTF-8, or name its encoding by data.encoding, as "cp1252"'
    )


def other_delimiter(path: Path, dialect: Dialect) -> str:
    """What seems to divide the cells, where that is another than declared; else nothing."""
    seems = delimiter_of(path, dialect.encoding)
    if seems is None or seems == dialect.delimiter:
        return ""
    return f"they seem to be divided by {seems!r}:"
