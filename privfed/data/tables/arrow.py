"""Tables of other libraries as Arrow tables: pandas, Polars, Hugging Face `datasets`, Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privfed.errors import Refused, public_text

if TYPE_CHECKING:
    import pyarrow


_TABLES = "a pandas, Polars, Arrow or Hugging Face table"


def is_table(candidate: Any) -> bool:
    """Whether `candidate` is a table that `as_arrow` takes."""
    return (
        is_pandas(candidate)
        or _is_hugging_face(candidate)
        or hasattr(candidate, "__arrow_c_stream__")
    )


def table_names(table: Any, called: str) -> list[str]:
    """The names of its columns, as text. Raises `Refused`, calling it `called`, for no table."""
    if not is_table(table):
        raise Refused(f"{called} is a {type(table).__name__}; expected {_TABLES}")
    return [str(name) for name in (table.columns if is_pandas(table) else _names(table))]


def as_arrow(table: Any, names: Sequence[str], called: str) -> pyarrow.Table:
    """The columns `names` of a table of any library. Raises `Refused`, calling it `called`."""
    import pyarrow

    try:
        if is_pandas(table):
            at = {name: place for place, name in enumerate(table_names(table, called))}
            part = table.iloc[:, [at[name] for name in names]]
            arrow = pyarrow.Table.from_pandas(part, preserve_index=False)
            return arrow.rename_columns(list(names))
        if _is_hugging_face(table):
            return table.with_format("arrow")[:].select(names)
        return pyarrow.table(table).select(names)
    except Exception as error:  # libraries quote the cells that they stumble over
        raise Refused(
            f"data: {called} has a column that no type fits ({public_text(error)}); expected "
            f"{_TABLES}, with one type in each column",
            private=" ".join(str(error).split()),
        ) from None


def _names(table: Any) -> list[str]:
    import pyarrow

    if hasattr(table, "column_names"):
        return list(table.column_names)
    return list(pyarrow.table(table).column_names)


def is_pandas(candidate: Any) -> bool:
    """Whether it is an object of pandas."""
    return type(candidate).__module__.partition(".")[0] == "pandas"


def _is_hugging_face(candidate: Any) -> bool:
    return hasattr(candidate, "with_format") and hasattr(candidate, "column_names")
