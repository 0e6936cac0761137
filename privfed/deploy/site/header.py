"""The header of a site's table, read without any byte of a row.

The coordinator may learn whether a table has the declared columns, but nothing that depends on a
client's rows (rules of proof, section 9.1, S1). The usual reader decodes rows together with the
header, so that a cell that cannot be decoded would change the answer.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accounting import regular
from privfed.core.errors import Refused
from privfed.data.tables.columns import Called, Columns, column_names
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.missing import AbsentColumn
from privfed.deploy.site.population import ReadsTables

_LONGEST = 1 << 20
"""Largest number of bytes of a header."""


class _Present(Exception):
    """Raised instead of reading rows: the header has all declared columns."""


@dataclass(frozen=True)
class _Header:
    """A table whose header `columns` is known, and whose rows cannot be read."""

    path: Path
    dialect: Dialect
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.path)

    @property
    def naming(self) -> str:
        """The place of the column names, as messages name it."""
        return "its first row"

    def names(self) -> list[str]:
        return [*self.columns]

    def hint(self, names: Sequence[str]) -> str:
        return ""

    def read(self, numbers: Called, words: Called) -> Columns:
        """Raises `_Present`: this is called only if the header has all these columns."""
        raise _Present


def header_lacks(source: ReadsTables, path: Path) -> str:
    """Returns the reason why the table at `path` cannot be read as `source` declares; "" if none.

    The reason is a missing file, or a declared column that is not in the header. Returns "" also if
    the header cannot be read, since the rows may be the cause of that.
    """
    if not path.exists():
        return f"{path} does not exist"
    names = _names(path, source.dialect)
    if names is None:
        return ""
    try:
        source.load_from(_Header(path, source.dialect, names))
    except AbsentColumn as error:
        return f"{error} {error.private}".strip()
    except (_Present, Refused):
        return ""
    return ""


def _names(path: Path, dialect: Dialect) -> tuple[str, ...] | None:
    """Returns the column names of the table at `path`; None if they cannot be read."""
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return tuple(column_names(path, dialect))
        return _csv_names(path, dialect)
    except (OSError, Refused, UnicodeError, csv.Error):
        return None


def _csv_names(path: Path, dialect: Dialect) -> tuple[str, ...] | None:
    """Returns the fields of the first nonempty record; None if it does not end in the first MiB.

    The end of the file ends a record, too.
    """
    regular.refuse_irregular(path)
    decoder, text = codecs.getincrementaldecoder(dialect.encoding)(), ""
    with path.open("rb") as file:
        for _ in range(_LONGEST):
            byte = file.read(1)
            text += decoder.decode(byte, final=not byte)
            ended = not byte or (text[-1:] in ("\r", "\n") and text.count('"') % 2 == 0)
            if ended and (record := text.strip("\ufeff\r\n")):
                return tuple(next(csv.reader([record], delimiter=dialect.delimiter)))
            if not byte:
                return None
            text = "" if ended else text
    return None
