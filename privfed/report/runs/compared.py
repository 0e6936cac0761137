"""Compares two runs: configurations, guarantees and results.

Configurations are compared key by key, as their files state them. No part is built and no module
that a file names is imported: defaults are those of built-in parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accounting.documents import encoded
from privfed.config.sections import SECTIONS
from privfed.core.errors import Broken, Refused, public_text
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.report.runs.run_row import (
    RunRow,
    epsilon_in,
    guarantees_of,
    measure_name,
    number_in,
    row_of,
)
from privfed.store.run_record import RunRecord

Document = Mapping[str, Any]
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A key and its values `first` and `second` in two run files.

    A value is None if the file does not state the key.
    """

    key: str
    first: Any
    second: Any


def differences(first: Document, second: Document) -> tuple[Difference, ...]:
    """Returns every key whose values differ between two run files, in the order of the files.

    A key that only one file states counts as equal if its value is the key's default for both
    files, because a later version of privfed may have added the key.

    Args:
      first: the content of one run file.
      second: the content of the other.
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
    """Returns `document` with built-in parts that are given by modules replaced by their names."""
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
    """Returns the name of a built-in part that is given by its module; else `part` unchanged."""
    return next((name for name, target in BUILT_IN[kind].items() if part == target), part)


def _flat(table: Document, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the path of names of each value in a nested table, and the value."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*above, name))
        else:
            yield (*above, name), value


def _came_later(
    place: tuple[str, ...], first: Document, second: Document, values: tuple[Any, Any]
) -> bool:
    """Whether the value at `place` that one file lacks is the key's default in both files.

    `values` are those of `first` and `second`; the one that is not stated is `_ABSENT`.
    """
    *above, key = place
    section = ".".join(above)
    (stated,) = (value for value in values if value is not _ABSENT)
    defaults = [_defaults(section, _section(each, above)) for each in (first, second)]
    return all(key in each and each[key] == stated for each in defaults)


def _section(document: Document, names: list[str]) -> Document:
    """Returns the nested table at the path `names` of `document`; empty if there is none."""
    table: Any = document
    for name in names:
        table = table.get(name) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def _defaults(name: str, stated: Document) -> dict[str, Any]:
    """Returns the defaults, by key, of section `name` and of its built-in parts.

    The parts are those that `stated`, the section in a run file, chooses, or the default ones.
    """
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


_MEANING = {"unit": "unit", "relation": "adjacency relation", "delta": "δ"}
"""Terms that two ε must share to be comparable, in addition to the party."""
_PRIVATE = {"canaries": "canaries", "examples": "silos with ledgers of their own"}
"""Terms of a ledger for which an audit reads private files."""


@dataclass(frozen=True)
class Evaluated:
    """The values of one evaluated round: metric, loss and spent ε; None for one not stated."""

    round: int
    value: float | None
    loss: float | None
    epsilon: float | None


@dataclass(frozen=True)
class Side:
    """One of two compared runs: its summary, its guarantees, and its evaluated rounds."""

    row: RunRow
    guarantees: tuple[Mapping[str, Any], ...]
    measure: str | None
    curve: tuple[Evaluated, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the run's summary as in `privfed list`, its guarantees, and evaluated rounds."""
        guarantees, curve = encoded(self.guarantees), encoded(self.curve)
        return {**self.row.to_json(), "guarantees": guarantees, "rounds_evaluated": curve}


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs.

    Attributes:
      sides: the two runs.
      settings: the keys in which the runs' configurations differ.
      incomparable: reasons why the runs' ε are not comparable; empty if they are.
      joint: the guarantee over both runs; None if there is none.
      no_joint_reason: the reason why there is no joint guarantee; "" if there is one.
    """

    sides: tuple[Side, Side]
    settings: tuple[Difference, ...]
    incomparable: tuple[str, ...]
    joint: Mapping[str, Any] | None
    no_joint_reason: str

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed compare --json` prints."""
        return {
            "runs": encoded(self.sides),
            "settings": encoded(self.settings),
            "comparable": not self.incomparable,
            "incomparable": list(self.incomparable),
            "joint": self.joint,
            "no_joint_reason": self.no_joint_reason or None,
        }


def compare_runs(first: Path, second: Path) -> Comparison:
    """Compares two runs without reading private files.

    Args:
      first: the directory of one run.
      second: the directory of the other.

    Raises:
      Refused: if there is no run at a path.
      Broken: if a file of a run cannot be read, or contradicts the ledger.
    """
    records = [_read(path) for path in (first, second)]
    left, right = (_side(each) for each in records)
    joint, why = _joint((left, right), records)
    return Comparison(
        (left, right),
        differences(records[0].keys, records[1].keys),
        tuple(_incomparable(left, right)),
        joint,
        why,
    )


def _read(path: Path) -> RunRecord:
    try:
        return RunRecord.read(path)
    except Broken as error:
        raise Broken(f"{path} is broken: {public_text(error)}") from None


def _side(record: RunRecord) -> Side:
    row = row_of(record)
    guarantees = (
        guarantees_of(record.opened_ledger) if record.opened_ledger and record.charges else []
    )
    if guarantees:
        row = replace(row, epsilon=float(guarantees[0]["epsilon"]))
    return Side(row, tuple(guarantees), row.measure, tuple(_curve(record, row.measure)))


def _curve(record: RunRecord, measure: str | None) -> Iterator[Evaluated]:
    """Yields the values of each evaluated round: of `measure`, or of its first metric if None.

    The ε is infinite if the run has no guarantee.
    """
    for round in sorted(record.evaluated):
        line = record.evaluated[round]
        name = measure or measure_name(line)
        value = number_in(line, name) if name else None
        spent = math.inf if record.terms.get("guarantee") else epsilon_in(line)
        yield Evaluated(round, value, number_in(line, "loss"), spent)


def _incomparable(left: Side, right: Side) -> Iterator[str]:
    """Yields the reasons why the ε of two runs are not comparable."""
    for side in (left, right):
        if side.row.guarantee:
            yield f"{side.row.run} has no guarantee"
        elif not side.guarantees:
            yield f"{side.row.run} has no charges yet"
    if not (left.guarantees and right.guarantees):
        return
    a, b = left.guarantees[0], right.guarantees[0]
    differ = [word for key, word in _MEANING.items() if a.get(key) != b.get(key)]
    if (left.row.against, left.row.trust) != (right.row.against, right.row.trust):
        differ.append("the party against whom it holds")
    if differ:
        yield f"they differ in {', '.join(differ)}"


def _joint(
    sides: tuple[Side, Side], records: Sequence[RunRecord]
) -> tuple[Mapping[str, Any] | None, str]:
    """Returns the joint guarantee over both runs, or None, and the reason if there is none."""
    left, right = (side.row for side in sides)
    if not (left.charges and right.charges):
        return None, "one of the runs released nothing"
    if left.population_digest is None or left.population_digest != right.population_digest:
        return None, "by their ledgers, the runs are not over the same population"
    for each in records:
        for term, words in _PRIVATE.items():
            if each.terms.get(term):
                return None, (
                    f"{each.path} has {words}, with private files that only `privfed audit` reads"
                )
    from privfed.auditing.joint_audit import audit_together

    try:
        merged = audit_together([each.path for each in records])
    except Refused as error:
        return None, str(error)
    if merged.bound is None:
        raise Broken("\n".join(merged.problems))
    audited = merged.to_json()
    return {**audited["guarantees"][0], "note": audited["note"]}, ""
