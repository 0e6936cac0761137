"""Keys of run and grid files that pages show, checked against the existing ones."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema
from pydantic import ValidationError

from privfed.config.catalog import schema
from privfed.config.overrides import assign, override
from privfed.config.sections import SECTIONS
from privfed.core.errors import Refused
from privfed.grid.grid import METHOD, Grid


def wrong_document(text: str) -> str:
    """Returns the errors of `text` as a run file or a grid file; "" if there are none."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return f"not valid TOML: {error}"
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
