"""Every key of a run file and of a grid file: form, default, meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pages.markdown import code, join, prose, sentence, table, within
from privfed.config.catalog import schema
from privfed.config.sections import SECTIONS
from privfed.core.registry import BUILT_IN

Schema = Mapping[str, Any]
HEAD = ("key", "form", "default", "meaning")
WORDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "`true` or `false`",
    "object": "table",
    "null": "",
}
BOUNDS = {
    "exclusiveMinimum": "above",
    "minimum": "at least",
    "exclusiveMaximum": "below",
    "maximum": "at most",
}
LONGEST = 40
"""The length from which a text is no longer shown as a default."""


def run_file() -> str:
    """Every section: its own keys, then those of each part that it may name."""
    described = schema()
    sections = described["properties"]
    nested = sections["client"]["properties"].pop("privacy")
    every = {**sections, "client.privacy": nested}
    blocks = [block for name in SECTIONS for block in _section(name, every[name])]
    return join([*blocks, *_definitions(described["$defs"])])


def grid_file() -> str:
    """The keys of a grid file, by its tables."""
    from privfed.config.catalog import meanings
    from privfed.grid.grid import Grid, Method, Tuning
    from privfed.grid.pictures.figures import Figure

    places = {"The file itself": Grid, "[[method]]": Method, "[tune]": Tuning, "[[figure]]": Figure}
    blocks = []
    for title, model in places.items():
        keys = model.model_json_schema()
        texts = meanings(model)
        rows = {key: {**how, "description": texts[key]} for key, how in keys["properties"].items()}
        blocks += [f"## {title}", _keys(rows, keys.get("required", ()))]
    return join(blocks)


def _section(name: str, section: Schema) -> Iterator[str]:
    parts = SECTIONS[name].parts
    properties = {key: how for key, how in section["properties"].items() if how}
    naming = {key: _naming(key, properties.pop(key), kind) for key, (kind, _) in parts.items()}
    yield f"## [{name}]"
    yield within("keys", table(HEAD, [*naming.values(), *_rows(properties)]))
    for key, (kind, _) in parts.items():
        for part, keys, required in _of_parts(section, key, kind):
            yield f"### {name}.{key} = {json.dumps(part)}"
            yield _keys(keys, required)


def _naming(key: str, how: Schema, kind: str) -> tuple[str, ...]:
    link = f"[part](parts.md#{kind}), or `module:Name`"
    return code(key), link, _default(how), prose(how["description"])


def _of_parts(section: Schema, key: str, kind: str) -> Iterator[tuple[str, Schema, list[str]]]:
    """The parts that bring keys, with these, and which have to be set."""
    for rule in section["allOf"]:
        chosen = rule["if"].get("properties", {}).get(key, {}).get("const")
        if chosen in BUILT_IN[kind] and (keys := rule["then"]["properties"]):
            yield chosen, keys, [name for name, how in keys.items() if "default" not in how]


def _definitions(definitions: Mapping[str, Schema]) -> Iterator[str]:
    """What a key's table holds, where it is one of a form of its own."""
    from privfed.config.catalog import meanings
    from privfed.data.tables.dates import Dates
    from privfed.models.start import Lora

    forms = {"Dates": ("A column of data.dates", Dates), "Lora": ("[model.lora]", Lora)}
    assert definitions.keys() == forms.keys()
    for name, (title, model) in forms.items():
        texts, keys = meanings(model), definitions[name]["properties"]
        rows = {each: {**how, "description": texts[each]} for each, how in keys.items()}
        yield f"### {title}"
        yield _keys(rows, definitions[name]["required"])


def _keys(keys: Mapping[str, Schema], required: Any) -> str:
    return within("keys", table(HEAD, _rows(keys, required)))


def _rows(keys: Mapping[str, Schema], required: Any = ()) -> Iterator[tuple[str, ...]]:
    for key, how in keys.items():
        default = "*required*" if key in required else _default(how)
        yield code(key), form(how), default, prose(sentence(how.get("description", "")))


def _default(how: Schema) -> str:
    value = how.get("default")
    if value is None or value == "":
        return ""
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{len(value)} characters"
    return code(json.dumps(value, ensure_ascii=False).replace("Infinity", "inf"))


def form(how: Schema) -> str:
    """What may stand there, in words."""
    if "enum" in how or "const" in how:
        return ", ".join(code(json.dumps(value)) for value in how.get("enum", [how.get("const")]))
    if "anyOf" in how:
        return " or ".join(filter(None, map(form, how["anyOf"])))
    if "$ref" in how:
        return "a table"
    kind = how.get("type", "")
    if kind == "array":
        return f"list of {_many(form(how['items']))}{_sizes(how)}" if how["items"] else "list"
    if kind == "object" and isinstance(inside := how.get("additionalProperties"), dict):
        return f"table of {_many(form(inside))}" if inside else "table"
    bounds = [f"{word} {how[name]:,}" for name, word in BOUNDS.items() if name in how]
    spelt = how.get("description") or code(how.get("pattern", ""))
    pattern = [f"as {spelt}"] if "pattern" in how else []
    return ", ".join([WORDS.get(kind, "any value"), *bounds, *pattern])


def _many(words: str) -> str:
    """The plural: "numbers, at least 0"."""
    for word in ("integer", "number", "text", "list", "table"):
        if words.startswith(word):
            return f"{word}s{words.removeprefix(word)}"
    return words.removeprefix("a ") + "s" if words == "a table" else words


def _sizes(how: Schema) -> str:
    least, most = how.get("minItems"), how.get("maxItems")
    if least == most is not None:
        return f", {least} of them"
    if most is not None:
        return f", {most} at most"
    return f", {least} at least" if least else ""
