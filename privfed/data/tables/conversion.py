"""Converts columns of a file to numbers or to words, whatever their type.

The arguments `called` and `table` name the column and its table in messages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from privfed.core.errors import Refused
from privfed.data.tables.cells import Words
from privfed.data.tables.delimited import Dialect

if TYPE_CHECKING:
    import pyarrow


def as_numbers(
    column: pyarrow.ChunkedArray, called: str, table: str, dialect: Dialect
) -> np.ndarray:
    """Converts a column of numbers to float64 `[N]`; empty cells become NaN.

    Booleans become 0 and 1, and texts are parsed. Raises `Refused` if the column has another type,
    or a text is not a number.
    """
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
            f"data: {table}: column {called} is of type {type_name(kind)}; expected numbers",
            private=f"it is of type {kind}",
        )
    if pyarrow.types.is_boolean(column.type):
        column = compute.cast(column, pyarrow.uint8())
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        return np.array(
            [
                parsed_number(cell, dialect, f"data: {table}, row {row}: column {called}")
                for row, cell in enumerate(column.to_pylist(), start=1)
            ],
            dtype=np.float64,
        )
    numbers = compute.cast(column, pyarrow.float64(), safe=False)
    return np.array(compute.fill_null(numbers, float("nan")).to_numpy(), dtype=np.float64)


def type_name(kind: pyarrow.DataType) -> str:
    """Returns the name of an Arrow type without its parameters, which may contain private names."""
    return re.split(r"[<\[(]", str(kind))[0]


def parsed_number(cell: str | None, dialect: Dialect, where: str) -> float:
    """Returns the number in `cell`; NaN for an empty cell, or a word in `dialect.missing`.

    Raises `Refused` for any other text, including numbers that only Python would accept (1_000).
    """
    if cell is None or cell in dialect.missing:
        return float("nan")
    try:
        if cell.isascii() and "_" not in cell:
            return float(dialect.with_point(cell))
    except ValueError:
        pass
    raise Refused(
        f"{where} is not a number; correct that cell, or declare words in data.categories (for the "
        "label, in data.labels)",
        private=f"it holds {cell!r}",
    )


def as_words(column: pyarrow.ChunkedArray) -> Words:
    """Converts a column of any type with a text form to words; an empty text is an empty cell."""
    import pyarrow
    from pyarrow import compute

    text = compute.cast(column, pyarrow.string()).combine_chunks().dictionary_encode()
    codes = np.array(compute.fill_null(text.indices, -1).to_numpy(), dtype=np.int64)
    values = text.dictionary.to_pylist()
    if "" in values:
        codes[codes == values.index("")] = -1
    return Words(codes, values)


def as_coded_words(array: np.ndarray) -> Words:
    """Converts an array `[N]` of texts or integers to words; an empty text is an empty cell."""
    values, codes = np.unique(array, return_inverse=True)
    texts = [str(value) for value in values.tolist()]
    codes = codes.astype(np.int64)
    if "" in texts:
        codes[codes == texts.index("")] = -1
    return Words(codes, texts)
