"""Converts tables of pandas, Polars, Hugging Face `datasets` and Arrow to Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privfed.core.errors import Refused, public_text

if TYPE_CHECKING:
    import pyarrow


_TABLES = "a pandas, Polars, Arrow or Hugging Face table"


def is_dict_of_tables(candidate: Any) -> bool:
    """Whether `candidate` is a mapping with at least one table as a value, as of splits."""
    return isinstance(candidate, Mapping) and any(map(is_table, candidate.values()))


def settled(table: Any) -> Any:
    """Returns an object with the rows of `table` that can be read repeatedly.

    A table that is not of Arrow, pandas or Hugging Face may be a stream, which can be read only
    once: the result is then an Arrow table. Otherwise it is `table` itself.
    """
    import pyarrow

    if is_table(table) and not (is_pandas(table) or _is_hugging_face(table)):
        return table if hasattr(table, "column_names") else pyarrow.table(table)
    return table


def is_table(candidate: Any) -> bool:
    """Whether `candidate` is a table that `as_arrow` supports."""
    if type(candidate).__module__.partition(".")[0] == "pandas":
        return is_pandas(candidate)  # a pandas column has a stream, too
    return _is_hugging_face(candidate) or hasattr(candidate, "__arrow_c_stream__")


def table_names(table: Any, called: str) -> list[str]:
    """Returns the names of the columns, as text. Raises `Refused` unless `table` is one table.

    The message calls it `called`.
    """
    if is_dict_of_tables(table):
        raise Refused(
            f"{called} is a {type(table).__name__} of several tables; pass a single table"
        )
    if not is_table(table):
        raise Refused(f"{called} is a {type(table).__name__}; expected {_TABLES}")
    return [str(name) for name in (table.columns if is_pandas(table) else _names(table))]


def as_arrow(table: Any, names: Sequence[str], called: str) -> pyarrow.Table:
    """Returns the columns `names` of a table of any supported library.

    Raises:
      Refused: if a column has no single type, or the data set has a transform; the message calls
        the table `called`.
    """
    import pyarrow

    try:
        if is_pandas(table):
            at = {name: place for place, name in enumerate(table_names(table, called))}
            part = table.iloc[:, [at[name] for name in names]]
            arrow = pyarrow.Table.from_pandas(part, preserve_index=False)
            return arrow.rename_columns(list(names))
        if _is_hugging_face(table):
            _refuse_transform(table, called)
            return table.with_format("arrow")[:].select(names)
        return pyarrow.table(table).select(names)
    except Refused:
        raise
    except Exception as error:  # errors of libraries quote cells
        raise Refused(
            f"data: {called} cannot be converted to Arrow ({public_text(error)}); expected "
            f"{_TABLES}, with one type in each column",
            private=" ".join(str(error).split()),
        ) from None


def _names(table: Any) -> list[str]:
    import pyarrow

    if hasattr(table, "column_names"):
        return list(table.column_names)
    return list(pyarrow.table(table).column_names)


def is_pandas(candidate: Any) -> bool:
    """Whether `candidate` is a pandas DataFrame."""
    package = type(candidate).__module__.partition(".")[0]
    return package == "pandas" and hasattr(candidate, "itertuples")


def _refuse_transform(dataset: Any, called: str) -> None:
    """Raises `Refused` if the data set transforms rows on access, which Arrow would skip."""
    if (getattr(dataset, "format", None) or {}).get("type") == "custom":
        raise Refused(
            f"data: {called} has a transform that is applied only when rows are read; apply it by "
            "map() first"
        )


def _is_hugging_face(candidate: Any) -> bool:
    return hasattr(candidate, "with_format") and hasattr(candidate, "column_names")
