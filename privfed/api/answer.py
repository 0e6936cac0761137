"""What a call comes to: facts by name as `--json` prints them, and the table that people read."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from privfed.core.errors import Refused

if TYPE_CHECKING:  # what is answered in JSON needs no tables
    from rich.console import Console, RenderableType


def plain(value: Any) -> Any:
    """`value` in the types of a run file, as deep as it goes; what else it holds stays."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | range):
        return [plain(item) for item in value]
    if not isinstance(value, type) and hasattr(value, "tolist"):  # arrays, their numbers, indices
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def as_path(value: Any, argument: str) -> Path:
    """The path that `value` is; a run's is shown from here. Raises `Refused` for another type."""
    if not isinstance(value, str | os.PathLike):
        raise Refused(f"{argument} is {value!r}; expected a path")
    return Path(value) if isinstance(value, str | Path) else from_here(Path(value))


def from_here(path: Path) -> Path:
    """`path` as tables show it: from the working directory, where it lies in it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


_WIDTH = 110
_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{code}</pre>'


class Stated(Protocol):
    """What states its facts by name."""

    def to_json(self) -> Mapping[str, Any]:
        """The object that `--json` prints."""
        ...


class Answer(Mapping[str, Any]):
    """Facts by name, as keys and as attributes; shown as the table that the command line prints.

    `table` makes that table, and `result` is what the facts come from, with everything else that it
    knows.
    """

    def __init__(
        self, facts: Mapping[str, Any], table: Callable[[], RenderableType], result: Any = None
    ) -> None:
        self._facts = dict(facts)
        self._table = table
        self.result = result

    @classmethod
    def of(cls, result: Stated, table: Callable[[Any], RenderableType]) -> Answer:
        """What `result` states, shown as the `table` of it."""
        return cls(result.to_json(), lambda: table(result), result)

    def as_table(self) -> RenderableType:
        """The table that the command line prints."""
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
    """What rich would print of `table`, without colours or blanks at the ends of lines."""
    screen = _screen(color_system=None)
    with screen.capture() as printed:
        screen.print(table)
    return "\n".join(line.rstrip() for line in printed.get().splitlines())


def table_html(table: RenderableType) -> str:
    """The same as a piece of a page, for notebooks."""
    screen = _screen(record=True)
    screen.print(table)
    return screen.export_html(inline_styles=True, code_format=_HTML)


def _screen(**settings: Any) -> Console:
    """A screen of rich's that prints into nothing."""
    from rich.console import Console

    return Console(file=io.StringIO(), width=_WIDTH, markup=False, force_jupyter=False, **settings)
