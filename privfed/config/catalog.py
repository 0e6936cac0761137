"""The catalogue of all parts by kind, and the JSON schema of a run file for editors."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from privfed.config.sections import FORMAT, SECTIONS
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN, CONTRACTS, LISTS


def meanings(part: type[BaseModel]) -> dict[str, str]:
    """Maps the keys of `part` and its bases to their docstrings, if they have any."""
    texts: dict[str, str] = {}
    for base in reversed(part.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            texts |= _documented(base.__module__, base.__qualname__)
    return {key: texts[key] for key in part.model_fields if key in texts}


@functools.cache
def source_of(module: str) -> ast.Module:
    """Returns the syntax tree of `module` without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{module} has no source to read")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def class_of(module: str, name: str) -> ast.ClassDef | None:
    """Returns the class `name` at the top level of `module`, if there is one."""
    classes = (node for node in source_of(module).body if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.name == name), None)


def _documented(module: str, name: str) -> dict[str, str]:
    """Docstrings of the keys that a class itself defines; none for a class created at run time."""
    try:
        node = class_of(module, name)
    except (ImportError, OSError, SyntaxError, ValueError):
        return {}
    pairs = itertools.pairwise(node.body if node else [])
    texts = {_key(statement): _text(below) for statement, below in pairs}
    return {key: text for key, text in texts.items() if key and text}


def _key(node: ast.stmt) -> str:
    """The key that `node` declares; "" if it declares none."""
    named = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    return node.target.id if named else ""  # type: ignore[attr-defined]


def _text(node: ast.stmt) -> str:
    """Returns `node` as one line if it is a docstring; "" otherwise."""
    value = node.value if isinstance(node, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return " ".join(text.split()) if isinstance(text, str) else ""


_Schema = dict[str, Any]
_MANY = 1000


def catalog() -> dict[str, dict[str, str]]:
    """Returns kind -> name -> first sentence of the documentation, for all parts."""
    installed = metadata.entry_points()
    described: dict[str, dict[str, str]] = {}
    for kind, known in BUILT_IN.items():
        described[kind] = {name: _described(kind, name) for name in known}
        for entry in installed.select(group=f"privfed.{kind}"):
            described[kind][entry.name] = _described(kind, entry.name)
    return described


def _described(kind: str, name: str) -> str:
    """Describes a part without importing it, where possible: some imports are slow."""
    target = BUILT_IN[kind].get(name)
    if target and kind != "objective":
        return _line(_documentation(target))
    part = find(kind, name, kind)
    line = _line(inspect.getdoc(part) or "")
    if kind != "objective" or any(key.is_required() for key in part.model_fields.values()):
        return line
    objective: Any = part()
    up = objective.exchanges * objective.layout(_MANY).length / _MANY
    down = objective.exchanges - 1 + objective.broadcasts
    keeps = f", keeps {_vectors(objective.keeps)}" if objective.keeps else ""
    return f"{line} (sends {_vectors(up)}, is sent {_vectors(down)}{keeps})"


def _vectors(count: float) -> str:
    """Formats a number of vectors `[d]`, without single scalars."""
    return "d" if round(count) == 1 else f"{count:.0f} d"


def key_of(kind: str) -> str:
    """Returns the key of a run file that names parts of `kind`: "server.optimizer".

    Raises:
      KeyError: for an unknown kind.
    """
    if kind in LISTS:
        return LISTS[kind]
    for section, described in SECTIONS.items():
        for key, (named, _) in described.parts.items():
            if named == kind:
                return f"{section}.{key}"
    raise KeyError(kind)


def _documentation(target: str) -> str:
    """Reads the docstring of a class of privfed, "module:Name", from its source."""
    described = class_of(*target.split(":"))
    return (described and ast.get_docstring(described)) or ""


def _line(documentation: str) -> str:
    first = documentation.split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<!et al)\. ", first)[0].rstrip(".")


def schema() -> _Schema:
    """Returns a JSON schema (draft 2020-12) of run files: keys and their combinations."""
    definitions: _Schema = {}
    sections = {name: _section(name, definitions) for name in SECTIONS}
    sections["client"]["properties"]["privacy"] = sections.pop("client.privacy")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "privfed run file",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            **sections,
            "resolved": {"type": "object", "description": "written by privfed into config.toml"},
        },
        "additionalProperties": False,
        "$defs": definitions,
    }


def _section(name: str, definitions: _Schema) -> _Schema:
    """Builds the schema of a section: its keys, naming keys, and each named part's keys.

    A part from outside has keys of its own, so unknown keys are allowed next to one.
    """
    section = SECTIONS[name]
    properties = _properties(section.keys, definitions)
    rules: list[_Schema] = []
    for key, (kind, default) in section.parts.items():
        known = sorted(BUILT_IN[kind])
        names = known if default else ["", *known]
        for part in known:
            fields = _properties(find(kind, part, f"{name}.{key}"), definitions)
            chosen: _Schema = {"properties": {key: {"const": part}}}
            if part != default:
                chosen["required"] = [key]
            rules.append({"if": chosen, "then": {"properties": fields}})
            for field in fields:
                properties.setdefault(field, {})  # for completion; the rule has its form
        properties[key] = {
            "type": "string",
            "default": default,
            "description": f"{_line(_documentation(CONTRACTS[kind]))}.",
            "anyOf": [{"enum": names}, {"pattern": ":"}],
        }
    keys = sorted(properties) + (["privacy"] if name == "client" else [])
    closed: _Schema = {"propertyNames": {"enum": keys}}
    foreign: list[_Schema] = [
        {"properties": {key: {"pattern": ":"}}, "required": [key]} for key in section.parts
    ]
    rules.append({"if": {"anyOf": foreign}, "else": closed} if foreign else closed)
    return {"type": "object", "properties": properties, "allOf": rules}


def _properties(model: type[BaseModel], definitions: _Schema) -> _Schema:
    described = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(described.get("$defs", {}))
    properties: Mapping[str, Any] = described.get("properties", {})
    texts = {key: {"description": text} for key, text in meanings(model).items()}
    return {key: {**value, **texts.get(key, {})} for key, value in properties.items()}
