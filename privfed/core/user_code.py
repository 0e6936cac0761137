"""Identifies users' own code: a digest of its sources, and its frames in a traceback."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_OTHERS = (
    frozenset({"accounting", "attacks", "builtins", "defenses", "peft", "privfed", "pydantic"})
    | {"torch", "transformers"}
    | sys.stdlib_module_names
)
"""Packages identified by their version instead of a digest, including Python's own."""


def sources_digest(classes: Iterable[Any]) -> str:
    """Returns the SHA-256 of names and sources of users' own `classes`; "" if there are none.

    Classes of privfed, Python's standard library and the packages in `_OTHERS` are left out.
    Comments and formatting do not count. If a source cannot be read, as for code typed at a
    prompt, only the name is hashed.
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
            if _name(each) == _LAMBDA:
                yield from _lambdas(each)
            else:
                yield ast.dump(ast.parse(textwrap.dedent(inspect.getsource(each))))
        except (OSError, TypeError, SyntaxError):
            continue


def _lambdas(function: Any) -> Iterator[str]:
    """Yields the syntax tree, as text, of each lambda that may be `function`.

    These are the lambdas in the line in which `function` starts that have the same names of
    arguments.
    """
    code = function.__code__
    nodes = ast.walk(ast.parse("".join(inspect.findsource(function)[0])))
    lambdas = [node for node in nodes if isinstance(node, ast.Lambda)]
    for node in lambdas:
        arguments = tuple(each.arg for each in node.args.args)
        same = arguments == code.co_varnames[: code.co_argcount]
        if same and node.lineno == code.co_firstlineno:
            yield ast.dump(node)


_LAMBDA = "<lambda>"


def _name(thing: object) -> str:
    """Returns the qualified name of `thing`; for a lambda, only "<lambda>"."""
    name = str(getattr(thing, "__qualname__", thing))
    return _LAMBDA if name.endswith(_LAMBDA) else name


_ROOT = Path(__file__).resolve().parents[2]
_PRIVFED = tuple(_ROOT / name for name in ("accounting", "attacks", "defenses", "privfed"))
_PLACES = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in _PLACES)


def user_frames(error: BaseException) -> str:
    """Returns the frames of `error` in users' own code, with source lines; "" without any.

    Frames are formatted as Python formats them, without the exception's text and without values.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return "".join(traceback.format_list([f for f in frames if _is_users(f.filename)])).rstrip()


def in_user_code(error: BaseException) -> str:
    """Returns `user_frames` under a heading line; "" if there are none."""
    frames = user_frames(error)
    return f"\nin your own code:\n{frames}" if frames else ""


def _is_users(filename: str) -> bool:
    """Whether `filename` is a file that belongs neither to privfed nor to an installed package."""
    path = Path(filename)
    libraries = (*_PRIVFED, *_INSTALLED)
    return path.is_file() and not any(path.resolve().is_relative_to(at) for at in libraries)
