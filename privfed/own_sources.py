"""The sources of a user's own classes and functions, as a digest."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

_OTHERS = (
    frozenset({"accounting", "attacks", "builtins", "defenses", "privfed", "pydantic", "torch"})
    | sys.stdlib_module_names
)
"""Packages whose code a version names, and no digest: Python's own among them."""


def sources_digest(classes: Iterable[Any]) -> str:
    """SHA-256 of the sources of `classes` (or functions) that are a user's own; "" without any.

    Comments and blanks do not count. One whose source cannot be read, since it was typed at a
    prompt, counts by its name.
    """
    theirs = {each for each in classes if _package(each) not in _OTHERS}
    if not theirs:
        return ""
    return hashlib.sha256("\n".join(_sources(theirs)).encode()).hexdigest()


def _package(thing: object) -> str:
    return str(getattr(thing, "__module__", "")).partition(".")[0]


def _sources(theirs: set[Any]) -> Iterator[str]:
    for each in sorted(theirs, key=lambda part: (_name(part), _package(part))):
        yield _name(each)
        try:
            yield ast.dump(ast.parse(textwrap.dedent(inspect.getsource(each))))
        except (OSError, TypeError, SyntaxError):
            continue


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", thing))
