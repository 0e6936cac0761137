"""A grid's tables on disk: of its cells, of evaluated rounds, and of the cells over their seeds.

Everything that is drawn is drawn from these tables alone, so that a study needs no run directories.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting.durable import make_folder, write_atomically
from privfed.errors import Refused
from privfed.grid.results import Files, Row, ordered_columns
from privfed.grid.summary import summary

if TYPE_CHECKING:
    import pyarrow


def write_tables(files: Files, keys: Sequence[str], rows: list[Row], rounds: list[Row]) -> None:
    """Write the table (CSV and Parquet), every evaluated round, and the summary over seeds."""
    from pyarrow import csv, parquet

    make_folder(files.folder)
    table = _table(rows, ordered_columns(keys, rows))
    parquet_bytes = io.BytesIO()
    parquet.write_table(table, parquet_bytes)
    write_atomically(files.named(".parquet"), parquet_bytes.getvalue())
    for path, content in (
        (files.table, table),
        (files.rounds, _table(rounds)),
        (files.summary, _table(summary(keys, rows))),
    ):
        if not content.num_columns:
            path.unlink(missing_ok=True)
            continue
        buffer = io.BytesIO()
        csv.write_csv(content, buffer, csv.WriteOptions(quoting_style="needed"))
        write_atomically(path, buffer.getvalue())


def _table(rows: list[Row], order: Sequence[str] = ()) -> pyarrow.Table:
    """A table with columns in `order`, or as rows first name them, each of one type."""
    import pyarrow

    names = order or list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pyarrow.table({name: _one_type(column) for name, column in columns.items()})


def _one_type(column: list[Any]) -> list[Any]:
    """`column` as integers, as real numbers, or as it is; as text where it has several types."""
    present = [value for value in column if value is not None]
    numbers = [value for value in present if not isinstance(value, bool | str)]
    if len(numbers) == len(present):
        integers = all(isinstance(value, int) for value in numbers)
        return column if integers else [None if v is None else float(v) for v in column]
    if len({type(value) for value in present}) == 1:
        return column
    return [None if value is None else str(value) for value in column]


def read_table(path: Path, words: Sequence[str] = ()) -> list[Row]:
    """The rows of a table that `write_tables` wrote; `words` are columns of text.

    Raises `Refused` where there is none.
    """
    import pyarrow
    from pyarrow import csv

    if not path.is_file():
        raise Refused(f"{path} does not exist: the experiment has no table yet; run it first")
    try:
        as_text = dict.fromkeys([*words, "status", "reason", "cell"], pyarrow.string())
        rows: list[Row] = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=as_text, strings_can_be_null=False),
        ).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    return rows
