"""The result of a call from Python: values by name, as `--json` prints them, and their table."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from privfed.core.errors import Refused

if TYPE_CHECKING:  # JSON output needs no tables
    import numpy as np
    from rich.console import Console, RenderableType


def plain(value: Any) -> Any:
    """Converts mappings, sequences, arrays and paths to types of a run file; keeps other values."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | range):
        return [plain(item) for item in value]
    if not isinstance(value, type) and hasattr(value, "tolist"):  # arrays, scalars, indices
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def as_path(value: Any, argument: str) -> Path:
    """Returns an argument as a path; for a `Run`, that of its directory (see `from_here`).

    Args:
      value: a string or a path-like object.
      argument: the name of the argument, for messages.

    Raises:
      Refused: if `value` is neither a string nor path-like.
    """
    if not isinstance(value, str | os.PathLike):
        raise Refused(f"{argument} is {value!r}; expected a path")
    return Path(value) if isinstance(value, str | Path) else from_here(Path(value))


def from_here(path: Path) -> Path:
    """Returns `path` relative to the working directory if it is inside; otherwise unchanged."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


_WIDTH = 110
_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{code}</pre>'


class HasFacts(Protocol):
    """A result whose values by name `to_json` returns."""

    def to_json(self) -> Mapping[str, Any]:
        """Returns the object that `--json` prints."""


class Answer(Mapping[str, Any]):
    """The result of a call: values by name, which are its keys and its attributes.

    Printing it prints the table of the corresponding command. Other attributes are those of
    `result`.

    Args:
      facts: the values by name, as `--json` prints them.
      table: makes the table.
      result: the object that the values come from, with further attributes.
    """

    def __init__(
        self, facts: Mapping[str, Any], table: Callable[[], RenderableType], result: Any = None
    ) -> None:
        self._facts = dict(facts)
        self._table = table
        self.result = result

    @classmethod
    def of(cls, result: HasFacts, table: Callable[[Any], RenderableType]) -> Answer:
        """Returns the values of `result` by name as an answer; `table` makes its table."""
        return cls(result.to_json(), lambda: table(result), result)

    def as_table(self) -> RenderableType:
        """Returns the table that the command line prints."""
        return self._table()

    def __getitem__(self, name: str) -> Any:
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._facts:
            return self._facts[name]
        try:
            return getattr(self.result, name)
        except AttributeError:
            known = ", ".join(self._facts)
            raise AttributeError(f"there is no {name!r}; known are {known}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._facts]

    def __str__(self) -> str:
        return table_text(self.as_table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self.as_table())


def table_text(table: RenderableType) -> str:
    """Returns rich's output for `table`, without colours or trailing blanks."""
    screen = _screen(color_system=None)
    with screen.capture() as printed:
        screen.print(table)
    return "\n".join(line.rstrip() for line in printed.get().splitlines())


def table_html(table: RenderableType) -> str:
    """Returns `table` as a fragment of HTML, for notebooks."""
    screen = _screen(record=True)
    screen.print(table)
    return screen.export_html(inline_styles=True, code_format=_HTML)


def _screen(**settings: Any) -> Console:
    """Returns a console of the library rich that writes to memory, not to the screen."""
    from rich.console import Console

    return Console(file=io.StringIO(), width=_WIDTH, markup=False, force_jupyter=False, **settings)


def in_kind_of(rows: Any, table: Mapping[str, np.ndarray]) -> Any:
    """Returns `table` (columns by name) as a table of the library that `rows` is from.

    That is a pandas table with the index of `rows` if `rows` is a pandas table; otherwise an Arrow
    table.
    """
    from privfed.data.tables.arrow import is_pandas, is_table

    if is_table(rows) and is_pandas(rows):
        import pandas

        return pandas.DataFrame(dict(table), index=rows.index)
    import pyarrow

    return pyarrow.table(dict(table))
