"""The API: what modules define for others, left to autodoc."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from pages.markdown import ROOT, join
from privfed.config.catalog import key_of
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN

TITLES = ("Functions", "What they take and return", "To extend", "Errors")
"""What public names are sorted by."""


def public_names(package: str) -> str:
    """All names that `package` says are public, each documented, by what they are for."""
    module = importlib.import_module(package)
    groups: dict[str, list[str]] = {title: [] for title in TITLES}
    for name in getattr(module, "__all__", ()):
        groups[_title(getattr(module, name))].append(_named(package, name))
    blocks = ([f"## {title}", *names] for title, names in groups.items() if names)
    return join(block for group in blocks for block in group)


def _title(thing: object) -> str:
    """The title under which a public name stands."""
    if not inspect.isclass(thing):
        return "Functions"
    if issubclass(thing, BaseException):
        return "Errors"
    return "To extend" if issubclass(thing, BaseModel) else "What they take and return"


def modules(package: str) -> str:
    """Every module of `package` and its rooms with a public name, and all of these."""
    blocks = []
    for path in sorted((ROOT / package).rglob("*.py"), key=lambda path: (path.parent, path.stem)):
        if not path.stem.startswith("_") and any(_public(path)):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            blocks += [f"## {module}", _directive("automodule", module, ":members:")]
    return join(blocks)


def parts_in_full() -> str:
    """The docstring of each built-in part of privfed's own: rules and attacks have pages."""
    blocks: list[str] = []
    listed: set[type] = set()
    for kind, parts in BUILT_IN.items():
        classes = dict.fromkeys(find(kind, name, kind) for name in parts)
        parts_here = [part for part in classes if part.__module__.startswith("privfed.")]
        if parts_here and not listed.issuperset(parts_here):
            blocks += [f"## {key_of(kind)}"]
            blocks += [
                _directive("autoclass", f"{part.__module__}.{part.__name__}") for part in parts_here
            ]
        listed.update(parts_here)
    return join(blocks)


def _named(package: str, name: str) -> str:
    thing = getattr(importlib.import_module(package), name)
    if inspect.isclass(thing):
        return _directive("autoclass", f"{package}.{name}", ":members:")
    directive = "autofunction" if callable(thing) else "autodata"
    return _directive(directive, f"{package}.{name}")


def _directive(directive: str, name: str, *options: str) -> str:
    lines = [f".. {directive}:: {name}", *(f"   {option}" for option in options)]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _public(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
