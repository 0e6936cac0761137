"""Every part by kind, and the schema of a run file for editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from privfed.parts import BUILT_IN


def catalog() -> dict[str, dict[str, str]]:
    """Kind -> name -> the first line of the part's documentation. Built in and installed."""
    found: dict[str, dict[str, str]] = {}
    for kind, known in BUILT_IN.items():
        outside: list[dict[str, Any]] = [
            {"properties": {key: {"pattern": ":"}}, "required": [key]} for key in section.parts
        ]
    known = sorted(properties) + (["privacy"] if name == "client" else [])
    closed: dict[str, Any] = {"propertyNames": {"enum": known}}
    rules.append({"if": {"anyOf": outside}, "else": closed} if outside else closed)
    return {"type": "object", "properties": properties, "allOf": rules}


def _properties(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    described = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(described.get("$defs", {}))
    properties: Mapping[str, Any] = described.get("properties", {})
    return {key: dict(value) for key, value in properties.items()}
