"""Reads run files, applies overrides, and reads the resolved file of a run directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from accounting.documents import from_toml
from privfed.config.assembly import assembled, keys_meant
from privfed.config.config import Config, Raw, with_given
from privfed.config.overrides import assign, override
from privfed.config.resolved import Resolved
from privfed.config.sections import (
    FORMAT,
    SECTIONS,
)
from privfed.core.errors import Refused
from privfed.core.parts import expected
from privfed.core.registry import BUILT_IN, CLIENT_MODELS, GIVEN, LISTS


def load(path: Path | None, overrides: Iterable[str] = ()) -> Config:
    """Returns the configuration of a run file with overrides, before its noise is calibrated.

    Args:
      path: the run file; None for the default run.
      overrides: assignments "section.key=value".

    Raises:
      Refused: if the file cannot be read, an assignment is invalid, or as `assembled` does.
    """
    return assembled(as_written(path, overrides))


def as_written(path: Path | None, overrides: Iterable[str] = ()) -> Raw:
    """Returns the keys of a run file with overrides, by section and without defaults.

    Args:
      path: the run file; None for overrides alone.
      overrides: assignments "section.key=value".

    Raises:
      Refused: if the file cannot be read, or an assignment is invalid.
    """
    raw = read_raw(path) if path else {}
    for assignment in overrides:
        override(raw, assignment)
    return raw


def read_raw(path: Path) -> Raw:
    """Returns the keys of a run file by section, as they are written.

    "format" and the values under "resolved" are left out. Raises `Refused` if the file cannot be
    read, or has an unknown section or a key outside of sections.
    """
    return _parted(read_toml(path, "run"), str(path))[0]


def read_resolved(
    text: str, of: str = "the configuration", given: Mapping[str, type[Any]] | None = None
) -> Config:
    """Returns the configuration that a resolved run file states, with its calibrated noise.

    Args:
      text: the content of the file, as `Config.toml` returns it.
      of: the name of the text in messages.
      given: classes of parts by kind, used instead of finding them by name.

    Raises:
      Refused: if the text is not a valid run file.
    """
    raw, solved = _parted(_of_format(from_toml(text), of), of)
    return assembled(with_given(raw, given or {}), solved)


def keys_of_outside_parts(text: str, of: str) -> list[str]:
    """Returns the keys of a run file that name external parts, whose code runs when they are built.

    Args:
      text: the content of a run file.
      of: the name of the text in messages.
    """
    raw, _ = _parted(_of_format(from_toml(text), of), of)
    parts = [
        (f"{name}.{key}", kind, raw.get(name, {}).get(key, default))
        for name, section in SECTIONS.items()
        for key, (kind, default) in section.parts.items()
    ]
    for kind, place in (*LISTS.items(), ("model", CLIENT_MODELS)):
        section, _, key = place.partition(".")
        listed = raw.get(section, {}).get(key, [])
        parts += [(place, kind, name) for name in (listed if isinstance(listed, list) else ())]
    return [
        key for key, kind, part in parts if part not in ["", *BUILT_IN[kind], *GIVEN.get(kind, {})]
    ]


def overridden(config: Config, overrides: Iterable[str]) -> Config:
    """Returns `config` with `section.key=value` overrides. Raises `Refused` if one is invalid."""
    raw = config.raw()
    for assignment in overrides:
        override(raw, assignment)
    return reassembled(raw, config)


def reassembled(raw: Raw, config: Config) -> Config:
    """Returns the configuration of `raw`, with the solved values (such as noise) of `config`.

    Raises `Refused` as `assembled` does.
    """
    return assembled(raw, config.resolved)


def restated(config: Config, path: Path, overrides: Iterable[str]) -> Config:
    """Returns `config` changed by the keys that a run file states, then by overrides.

    Keys that the file leaves out keep their values, even if the defaults of this version differ.

    Args:
      config: the configuration to change.
      path: the run file.
      overrides: assignments "section.key=value".

    Raises:
      Refused: if the file cannot be read, an assignment is invalid, or as `assembled` does.
    """
    raw = config.raw()
    for name, section in as_written(path, overrides).items():
        for key, value in section.items():
            assign(raw, f"{name}.{key}", value)
    return reassembled(raw, config)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Returns the content of a TOML file of privfed, without "format", which is checked.

    Args:
      path: the file.
      what: the kind of file, for messages.

    Raises:
      Refused: if the file cannot be read, or states a format other than `FORMAT`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise Refused(f"{path} does not exist; expected a {what} file (TOML)") from error
    except (OSError, ValueError) as error:  # not UTF-8, or an impossible file name
        raise Refused(f"{str(path)!r} cannot be read: {error}; expected a TOML file") from error
    try:
        document = from_toml(text)
    except ValueError as error:
        raise Refused(f"{path} is not valid TOML: {error}; correct that line") from error
    return _of_format(document, str(path))


def _of_format(document: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns `document` without its "format". Raises `Refused` for another format."""
    stated = document.pop("format", FORMAT)
    if stated != FORMAT:
        raise Refused(
            f"{path} has format = {stated!r}, but this version of privfed reads format = {FORMAT}"
            + ("; update privfed" if isinstance(stated, int) and stated > FORMAT else "")
        )
    return document


def _parted(document: dict[str, Any], path: str) -> tuple[Raw, Resolved]:
    """Returns a run file's sections, and the values under "resolved", which a plan solved for.

    Raises `Refused` for an unknown section, or a key outside of sections.
    """
    solved = Resolved.read(document.pop("resolved", None))
    client = document.get("client")
    if isinstance(client, dict) and "privacy" in client:
        document["client.privacy"] = client.pop("privacy")
    for name, section in document.items():
        if name not in SECTIONS:
            known = expected(name, list(SECTIONS), *keys_meant(name))
            raise Refused(f"{path}: unknown section [{name}]; {known}", key=name)
        if not isinstance(section, dict):
            raise Refused(f"{path}: {name} is {section!r}; expected a section [{name}]", key=name)
    return document, solved
