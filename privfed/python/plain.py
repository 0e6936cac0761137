"""Arguments as a run file would hold them: lists for tuples, plain numbers for NumPy's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privfed.errors import Refused


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
    """The path that `value` is. Raises `Refused` for another type of the `argument`."""
    if not isinstance(value, str | os.PathLike):
        raise Refused(f"{argument} is {value!r}; expected a path")
    return Path(value)


def from_here(path: Path) -> Path:
    """`path` as tables show it: from the working directory, where it lies in it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
