"""What differs between two configurations, key by key, as their files spell it.

No part is built, and nothing imported that a file names: defaults are those of built-in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from privfed.config.sections import SECTIONS
from privfed.moved import former
from privfed.parts import find
from privfed.registry import BUILT_IN

Document = Mapping[str, Any]
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A key of run files and what stands there in each of two; None where it does not stand."""

    key: str
    first: Any
    second: Any


def differences(first: Document, second: Document) -> tuple[Difference, ...]:
    """Every key that differs, in the order of the files.

    A key that only one of them states at its default is none where both name the part that it
    belongs to: it came with a later version.
    """
    first, second = _catalogued(first), _catalogued(second)
    left, right = dict(_flat(first)), dict(_flat(second))
    sections = [*dict.fromkeys(place[:-1] for place in (*left, *right))]
    places = sorted(dict.fromkeys([*left, *right]), key=lambda place: sections.index(place[:-1]))
    differing = []
    for place in places:
        values = left.get(place, _ABSENT), right.get(place, _ABSENT)
        if values[0] == values[1] and type(values[0]) is type(values[1]):
            continue
        if _ABSENT in values and _came_later(place, first, second, values):
            continue
        stated = [None if value is _ABSENT else value for value in values]
        differing.append(Difference(".".join(place), *stated))
    return tuple(differing)


def _catalogued(document: Document) -> Document:
    """`document` with built-in parts by their names, where a file spells their former places."""
    tables: dict[str, Any] = dict(document)
    for name, section in SECTIONS.items():
        table = tables.get(name)
        if isinstance(table, Mapping):
            named = {
                key: _part_name(kind, table[key])
                for key, (kind, _) in section.parts.items()
                if key in table
            }
            tables[name] = {**table, **named}
    return tables


def _part_name(kind: str, part: Any) -> Any:
    """The name of a built-in part, however it is spelt; anything else as it is."""
    places = ((name, (target, *former(target))) for name, target in BUILT_IN[kind].items())
    return next((name for name, spelt in places if part in spelt), part)


def _flat(table: Document, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value by the names on the way to it."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*above, name))
        else:
            yield (*above, name), value


def _came_later(
    place: tuple[str, ...], first: Document, second: Document, values: tuple[Any, Any]
) -> bool:
    """Whether the one of `values` that stands there is what a file means that is silent on it."""
    *above, key = place
    section = ".".join(above)
    (stated,) = (value for value in values if value is not _ABSENT)
    defaults = [_defaults(section, _section(each, above)) for each in (first, second)]
    return all(key in each and each[key] == stated for each in defaults)


def _section(document: Document, names: list[str]) -> Document:
    """The table at `names`; an empty one where there is none."""
    table: Any = document
    for name in names:
        table = table.get(name) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def _defaults(name: str, stated: Document) -> dict[str, Any]:
    """The defaults of a section's keys, as far as the parts that it names are built in."""
    section = SECTIONS.get(name)
    if section is None:
        return {}
    models = [section.keys]
    defaults: dict[str, Any] = {key: default for key, (_, default) in section.parts.items()}
    for key, (kind, default) in section.parts.items():
        part = stated.get(key, default)
        if isinstance(part, str) and part in BUILT_IN[kind]:
            models.append(find(kind, part, f"{name}.{key}"))
    for model in models:
        fields = model.model_fields.items()
        defaults |= {key: field.get_default(call_default_factory=True) for key, field in fields}
    return defaults
