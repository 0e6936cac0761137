"""Tables of other libraries as Arrow tables: pandas, Polars, Hugging Face `datasets`, Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privfed.errors import Refused, public_text

if TYPE_CHECKING:
    import pyarrow


def is_table(candidate: Any) -> bool:
    """Whether `candidate` is a table that `as_arrow` takes."""
    return (
        _is_pandas(candidate)
        or _is_hugging_face(candidate)
        or hasattr(candidate, "__arrow_c_stream__")
    )


def as_arrow(frame: Any, called: str) -> pyarrow.Table:
    """`frame` as an Arrow table without an index, where it is a table of any library.

    Raises `Refused`, calling it `called`, for what is no table.
    """
    import pyarrow

    try:
        if _is_pandas(frame):
            return pyarrow.Table.from_pandas(frame, preserve_index=False)
        if _is_hugging_face(frame):
            return frame.with_format("arrow")[:]
        return pyarrow.table(frame)
    except Exception as error:  # libraries quote the cells that they stumble over
        raise Refused(
            f"{called} is a {type(frame).__name__}, of which no table can be made: "
            f"{public_text(error)}; expected a pandas, Polars, Arrow or Hugging Face table with "
            "one type in each column",
            private=" ".join(str(error).split()),
        ) from None


def _is_pandas(candidate: Any) -> bool:
    return type(candidate).__module__.partition(".")[0] == "pandas"


def _is_hugging_face(candidate: Any) -> bool:
    return hasattr(candidate, "with_format") and hasattr(candidate, "column_names")
