"""Single keys of a run file, as `--set section.key=value` and grids name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from accounting.documents import from_toml
from privfed.config.assembly import known_keys
from privfed.config.config import Raw
from privfed.config.sections import (
    SECTIONS,
)
from privfed.core.errors import Refused
from privfed.core.parts import Part, expected


def override(raw: Raw, assignment: str) -> None:
    """Apply one `--set section.key=value` to `raw`. Raises `Refused`."""
    target, equals, text = assignment.partition("=")
    if not equals or "." not in target:
        raise Refused(f"--set {assignment}: expected section.key=value, e.g. server.lr=0.5")
    try:
        assign(raw, target.strip(), _value(text.strip()))
    except Refused as refused:
        raise Refused(f"--set {assignment}: {refused}", key=refused.key) from refused


def assign(raw: Raw, target: str, value: Any) -> None:
    """Set the key `target`, "section.key". Raises `Refused` where there is no such section.

    Naming another part drops the keys that only the former part knew. A key of a table within a
    section is "section.table.key".
    """
    name, dot, key = target.rpartition(".")
    if not dot:
        raise Refused(f"{target!r} is no section.key, as server.lr")
    if _is_table(name):
        outer, _, table = name.rpartition(".")
        section = raw.setdefault(outer, {})
        written = section.get(table)
        section[table] = {**(written if isinstance(written, dict) else {}), key: value}
        return
    if name not in SECTIONS:
        raise Refused(f"unknown section {name!r}; {expected(name, [*SECTIONS])}", key=name)
    section = raw.setdefault(name, {})
    if key in SECTIONS[name].parts and value != section.get(key):
        before = known_keys(name, section)
        section[key] = value
        after = known_keys(name, section)
        for stale in (before - after) & set(section):
            del section[stale]
    section[key] = value
    if name == "privacy" and key in ("epsilon", "noise_multiplier"):
        section.pop({"epsilon": "noise_multiplier"}.get(key, "epsilon"), None)


def is_key(target: str) -> bool:
    """Whether `target` is a key of some section, or of a table within one."""
    name, dot, _ = target.rpartition(".")
    return bool(dot) and (name in SECTIONS or _is_table(name))


def value_at(raw: Raw, target: str) -> Any:
    """What the key `target` is set to; None where it is not."""
    name, _, key = target.rpartition(".")
    if name in SECTIONS:
        return raw[name].get(key)
    return (value_at(raw, name) or {}).get(key)


def _is_table(target: str) -> bool:
    """Whether "section.key" is a table of keys by itself."""
    name, _, key = target.rpartition(".")
    field = SECTIONS[name].keys.model_fields.get(key) if name in SECTIONS else None
    kinds = get_args(field.annotation) if field else ()
    return any(isinstance(kind, type) and issubclass(kind, Part) for kind in kinds)


def _value(text: str) -> Any:
    """A TOML value, or else the text itself: `server.optimizer=fedavg` needs no quotes."""
    try:
        document = from_toml(f"value = {text}")
        return document["value"] if len(document) == 1 else text
    except ValueError:
        pass
    try:
        return float(text)  # .5 and 1. are no TOML, but everybody means a number
    except ValueError:
        return text


def evaluation_keys(assignments: Iterable[str]) -> dict[str, Any]:
    """The keys of [evaluation] that `--set evaluation.key=value` assign. Raises `Refused`."""
    raw: Raw = {}
    for assignment in assignments:
        override(raw, assignment)
    if others := raw.keys() - {"evaluation"}:
        raise Refused(f"--federated takes keys of [evaluation] alone; leave out {min(others)}")
    keys = raw.get("evaluation", {})
    for key in ("by", "every", "holdout"):
        if key in keys:
            raise Refused(
                f"--federated asks clients once, about what the run left them; leave out "
                f"evaluation.{key}",
                key=f"evaluation.{key}",
            )
    return keys
