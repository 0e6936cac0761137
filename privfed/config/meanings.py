"""What keys mean: the docstrings below them, for editors and for the documentation."""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
from pathlib import Path

from pydantic import BaseModel


def meanings(part: type[BaseModel]) -> dict[str, str]:
    """Key -> its docstring, of `part` and what it extends; keys without one are left out."""
    texts: dict[str, str] = {}
    for base in reversed(part.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            texts |= _documented(base.__module__, base.__qualname__)
    return {key: texts[key] for key in part.model_fields if key in texts}


@functools.cache
def source_of(module: str) -> ast.Module:
    """The syntax of `module`, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{module} has no source to read")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def class_of(module: str, name: str) -> ast.ClassDef | None:
    """The class `name` at the top of `module`, if there is one."""
    classes = (node for node in source_of(module).body if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.name == name), None)


def _documented(module: str, name: str) -> dict[str, str]:
    """The docstrings of a class's own keys; none of a class that is made while a program runs."""
    try:
        node = class_of(module, name)
    except (ImportError, OSError, SyntaxError, ValueError):
        return {}
    pairs = itertools.pairwise(node.body if node else [])
    texts = {_key(statement): _text(below) for statement, below in pairs}
    return {key: text for key, text in texts.items() if key and text}


def _key(node: ast.stmt) -> str:
    """The key that `node` declares, if it does."""
    named = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    return node.target.id if named else ""  # type: ignore[attr-defined]


def _text(node: ast.stmt) -> str:
    """The docstring that `node` is, if it is one, in one line."""
    value = node.value if isinstance(node, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return " ".join(text.split()) if isinstance(text, str) else ""
