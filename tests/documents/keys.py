"""Keys of run and grid files that pages show, checked against the existing ones."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema
from pydantic import ValidationError

from privfed import Run
from privfed.claims.imported import OtherRun
from privfed.config.catalog import schema
from privfed.config.overrides import assign, override
from privfed.config.sections import SECTIONS
from privfed.core.errors import Refused
from privfed.core.parts import find, imported
from privfed.core.registry import ADAPTERS, BUILT_IN, GIVEN
from privfed.core.text import nearest
from privfed.grid.grid import METHOD, Grid


def wrong_document(text: str) -> str:
    """Returns the errors of `text` as a run file, a grid file or another framework's run; "" if
    there are none.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return f"not valid TOML: {error}"
    if "framework" in document:
        OtherRun.model_validate(document)
        return ""
    return _wrong_grid(document) if document.keys() & Grid.model_fields else _wrong_run(document)


def wrong_overrides(assignments: Iterable[str]) -> str:
    """Returns the errors of `--set section.key=value`, all together; "" if there are none."""
    raw: dict[str, Any] = {}
    try:
        for assignment in assignments:
            _override(raw, assignment)
    except Refused as refused:
        return str(refused)
    return _wrong_run(raw)


NO_KEYS = {
    "budget.epsilon": "a key of a site's policy.toml, whose [budget] a run file has too",
}
"""Code within lines that looks like a key of a run file, and what it is."""
_FILES = {"json", "onnx", "pem", "pt2", "py", "safetensors", "toml"}


def wrong_key(span: str) -> str:
    """Returns the error of code within a line that looks like `section.key` or `section.key =
    value`; "" if it is a key of the run file, or none.
    """
    match = re.fullmatch(r"(\w+|client\.privacy)\.(\w+)(\s*=.*)?", span)
    if not match or match[1] not in SECTIONS or match[1] + "." + match[2] in {*SECTIONS, *NO_KEYS}:
        return ""
    if match[2] in _keys()[match[1]] or match[2] in _FILES:
        return ""
    if match[1] == "run" and hasattr(Run, match[2]):
        return ""
    close = nearest(match[2], _keys()[match[1]])
    meant = f" (did you mean {match[1]}.{close}?)" if close else ""
    return f"`{span}`: [{match[1]}] has no key {match[2]}{meant}"


@functools.cache
def _keys() -> dict[str, set[str]]:
    """Returns the keys of every section, of its parts also."""
    keys = {name: {*section.keys.model_fields} for name, section in SECTIONS.items()}
    for name, section in SECTIONS.items():
        for key, (kind, _) in section.parts.items():
            parts = [find(kind, each, key) for each in {**BUILT_IN[kind], **GIVEN.get(kind, {})}]
            if kind in ADAPTERS:
                parts.append(imported(ADAPTERS[kind], kind, key))
            keys[name] |= {key, *(field for part in parts for field in part.model_fields)}
    return keys


def _override(raw: dict[str, Any], assignment: str) -> None:
    """Applies `override` without importing external parts."""
    target, _, text = assignment.partition("=")
    section, _, key = target.rpartition(".")
    if re.fullmatch(r"\w+:\w+", text) and key in getattr(SECTIONS.get(section), "parts", ()):
        raw.setdefault(section, {})[key] = text
    else:
        override(raw, assignment)


def _wrong_grid(document: dict[str, Any]) -> str:
    document.pop("format", None)
    try:
        grid = Grid.model_validate(document)
    except ValidationError as error:
        return str(error)
    settings = [{key: value} for key, values in grid.grid.items() for value in values]
    settings += [{key: value} for key, values in _tuned(grid) for value in values]
    settings += [method.set for method in grid.method]
    exclusions = {key for exclusion in grid.exclude for key in exclusion} - {METHOD}
    settings += [{key: 0} for key in exclusions if "." not in key]  # refused below by name
    return "\n".join(filter(None, map(_wrong_settings, settings)))


def _tuned(grid: Grid) -> list[tuple[str, list[Any]]]:
    over = list(grid.tune.over.items()) if grid.tune else []
    return over + [item for method in grid.method for item in method.tune.items()]


def _wrong_settings(settings: Mapping[str, Any]) -> str:
    raw: dict[str, Any] = {}
    try:
        for key, value in settings.items():
            assign(raw, key, value)
    except Refused as refused:
        return str(refused)
    return _wrong_run(raw)


def _wrong_run(document: Mapping[str, Any]) -> str:
    sections = {key: value for key, value in document.items() if key != "client.privacy"}
    if inner := document.get("client.privacy"):
        sections["client"] = {**sections.get("client", {}), "privacy": inner}
    errors = sorted(_judge().iter_errors(sections), key=lambda error: list(error.absolute_path))
    return "\n".join(f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in errors)


@functools.cache
def _judge() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())
