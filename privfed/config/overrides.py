"""Sets single keys of a run file, given as `--set section.key=value` or by a grid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from accounting.documents import from_toml
from privfed.config.assembly import keys_meant, known_keys
from privfed.config.config import Raw
from privfed.config.sections import (
    SECTIONS,
)
from privfed.core.errors import Refused
from privfed.core.parts import Part, expected
from privfed.core.text import nearest


def override(raw: Raw, assignment: str) -> None:
    """Applies one `--set section.key=value` to `raw`.

    Args:
      raw: the keys of each section, changed in place.
      assignment: "section.key=value"; the value is TOML or plain text.

    Raises:
      Refused: if the assignment is malformed, or there is no such section or part.
    """
    target, equals, text = assignment.partition("=")
    if not equals or "." not in target:
        meant = keys_meant(target.strip())
        example = f"e.g. {meant[0] if meant else 'server.lr'}={text or 0.5}"
        raise Refused(f"--set {assignment}: expected section.key=value, {example}")
    try:
        assign(raw, target.strip(), _value(text.strip()))
    except Refused as refused:
        raise Refused(f"--set {assignment}: {refused}", key=refused.key) from refused


def assign(raw: Raw, target: str, value: Any) -> None:
    """Sets one key of a run file.

    Naming another part removes the keys that only the former part defines. Setting one of
    privacy.epsilon and privacy.noise_multiplier removes the other. A key of a table within a
    section is "section.table.key".

    Args:
      raw: the keys of each section, changed in place.
      target: "section.key".
      value: the value, of a type that a run file can state.

    Raises:
      Refused: if `target` has no dot, or there is no such section or part.
    """
    name, dot, key = target.rpartition(".")
    if not dot:
        raise Refused(
            f"the key is {target!r}; expected the form section.key, for example server.lr"
        )
    if _is_table(name):
        outer, _, table = name.rpartition(".")
        section = raw.setdefault(outer, {})
        written = section.get(table)
        section[table] = {**(written if isinstance(written, dict) else {}), key: value}
        return
    if name not in SECTIONS:
        meant = [] if nearest(name, SECTIONS) else keys_meant(key)
        known = expected(name, [*SECTIONS], *meant)
        raise Refused(f"unknown section {name!r}; {known}", key=name)
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
    """Whether `target` has a dot, and names a section, or a table in one, up to its last dot.

    The key after the dot need not exist.
    """
    name, dot, _ = target.rpartition(".")
    return bool(dot) and (name in SECTIONS or _is_table(name))


def value_at(raw: Raw, target: str) -> Any:
    """Returns the value of the key `target` ("section.key") in `raw`; None if it is not set.

    Raises `KeyError` if `raw` lacks the section.
    """
    name, _, key = target.rpartition(".")
    if name in SECTIONS:
        return raw[name].get(key)
    return (value_at(raw, name) or {}).get(key)


def _is_table(target: str) -> bool:
    """Whether "section.key" is itself a table of keys."""
    name, _, key = target.rpartition(".")
    field = SECTIONS[name].keys.model_fields.get(key) if name in SECTIONS else None
    kinds = get_args(field.annotation) if field else ()
    return any(isinstance(kind, type) and issubclass(kind, Part) for kind in kinds)


def _value(text: str) -> Any:
    """Returns `text` parsed as a TOML value, or else as a number of Python, or else unchanged."""
    try:
        document = from_toml(f"value = {text}")
        return document["value"] if len(document) == 1 else text
    except ValueError:
        pass
    try:
        return float(text)  # .5 and 1. are not TOML, but clearly numbers
    except ValueError:
        return text


def evaluation_keys(assignments: Iterable[str]) -> dict[str, Any]:
    """Returns key -> value for the assignments "evaluation.key=value" of `--set`.

    Raises:
      Refused: for keys of other sections, and for keys that a single evaluation cannot use: by,
        every and holdout.
    """
    raw: Raw = {}
    for assignment in assignments:
        override(raw, assignment)
    if others := raw.keys() - {"evaluation"}:
        raise Refused(
            "with --federated, --set takes only keys of [evaluation]; leave the keys of "
            f"[{min(others)}] out"
        )
    keys = raw.get("evaluation", {})
    for key in ("by", "every", "holdout"):
        if key in keys:
            raise Refused(
                f"--federated evaluates a finished run once, where evaluation.{key} has no "
                f"effect; leave evaluation.{key} out",
                key=f"evaluation.{key}",
            )
    return keys
