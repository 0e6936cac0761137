"""The typed configuration of a run: sections and keys, assembled from the parts' own files.

A TOML file (or nothing: the default run) and `--set section.key=value` become frozen, strict
models. Unknown keys, wrong types and values out of range are refused here, all of them in one
message; what may be combined is `privfed.plan`'s business.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from privfed.errors import Refused
from privfed.parts import BUILT_IN, Part, expected, find
from privfed.roundtime import Devices
from privfed.sections import (
    SECTIONS,
    Aggregation,
    Attack,
    Audit,
    Client,
    Data,
    Privacy,
    Run,
    Section,
    Secure,
    Start,
)

FORMAT = 1
DEFAULT_EPSILON = 4.0
Raw = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Resolved:
    """What a plan solved for, as its run's file keeps it: see `Config`."""

    noise_multiplier: float | None = None
    admitted: int = 0

    @classmethod
    def read(cls, stated: Any) -> Resolved:
        """What a file states under "resolved"; nothing, where that is none of ours."""
        kinds = {"noise_multiplier": float, "admitted": int}
        stated = stated if isinstance(stated, dict) else {}
        return cls(**{k: stated[k] for k, of in kinds.items() if type(stated.get(k)) is of})


@dataclass(frozen=True)
class Config:
    """A resolved run: sections' own keys, and the parts by kind with their names; all frozen.

    `noise_multiplier` is what calibration found, None before, and `admitted` the smallest cohort
    that a secure sum begins with, where that was solved for; a resume keeps both.
    """

    own: Mapping[str, Any]
    parts: Mapping[str, Any]
    names: Mapping[str, str]
    noise_multiplier: float | None = None
    admitted: int = 0

    @property
    def run(self) -> Run:
        return self.own["run"]  # type: ignore[no-any-return]

    @property
    def data(self) -> Data:
        return self.own["data"]  # type: ignore[no-any-return]

    @property
    def start(self) -> Start:
        return self.own["model"]  # type: ignore[no-any-return]

    @property
    def client(self) -> Client:
        return self.own["client"]  # type: ignore[no-any-return]

    @property
    def privacy(self) -> Privacy:
        return self.own["privacy"]  # type: ignore[no-any-return]

    @property
    def devices(self) -> Devices:
        return self.own["devices"]  # type: ignore[no-any-return]

    @property
    def aggregation(self) -> Aggregation:
        return self.own["aggregation"]  # type: ignore[no-any-return]

    @property
    def secure(self) -> Secure:
        return self.own["secure"]  # type: ignore[no-any-return]

    @property
    def attack(self) -> Attack:
        return self.own["attack"]  # type: ignore[no-any-return]

    @property
    def audit(self) -> Audit:
        return self.own["audit"]  # type: ignore[no-any-return]

    @property
    def attacked(self) -> bool:
        """Whether anybody attacks."""
        return bool(self.parts["attack"].acts) and self.attack.fraction > 0.0

    @property
    def secured(self) -> bool:
        """Whether rows are summed by a protocol that shows nobody's."""
        return bool(self.parts["protocol"].hides_rows)

    @property
    def real_clients(self) -> bool:
        """Whether clients are the source's own, each with its own examples, and no simulation."""
        return bool(self.parts["source"].found and not self.parts["partition"].deals)

    @property
    def before(self) -> tuple[Any, ...]:
        """The pre-aggregators, in order."""
        values = self.aggregation.model_dump()
        found = (find("before", name, "aggregation.before") for name in self.aggregation.before)
        return tuple(part(**{key: values[key] for key in part.model_fields}) for part in found)

    @property
    def dropout(self) -> float:
        return float(self.own["cohort"].dropout)

    def with_run(self, **changes: Any) -> Config:
        return replace(self, own={**self.own, "run": self.run.model_copy(update=changes)})

    def values(self) -> Raw:
        """Every key with its value, by section, as in a run file; unset keys are left out."""
        out: Raw = {}
        for name, section in SECTIONS.items():
            out[name] = {key: self.names[kind] for key, (kind, _) in section.parts.items()}
            for model in (
                *(self.parts[kind] for kind, _ in section.parts.values()),
                self.own[name],
            ):
                out[name] |= model.model_dump(exclude_none=True)
        return out

    def toml(self) -> str:
        """The resolved run file, which `load` reads back to an equal configuration."""
        values = self.values()
        nested: dict[str, Any] = {"format": FORMAT, **values}
        nested["client"] = {**values["client"], "privacy": nested.pop("client.privacy")}
        if self.noise_multiplier is not None:
            admitted = {"admitted": self.admitted} if self.admitted else {}
            nested["resolved"] = {"noise_multiplier": self.noise_multiplier, **admitted}
        return tomli_w.dumps(nested)

    def digest(self) -> str:
        """`digest` of the file that `toml` writes."""
        return digest(self.toml())


def digest(text: str) -> str:
    """SHA-256 of all that a resume may not change in a resolved run file, as it is written there.

    Defaults that later versions add do not enter, and no part is built or imported.
    """
    document = tomllib.loads(text)
    document["run"].pop("rounds")
    document["privacy"].pop("epsilon", None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def load(path: Path | None, overrides: Iterable[str] = ()) -> Config:
    """Read a run file (None: the default run) with `section.key=value` overrides.

    The noise of a resolved file is solved for afresh. Raises `Refused` with every problem found.
    """
    return assembled(as_written(path, overrides))


def as_written(path: Path | None, overrides: Iterable[str] = ()) -> Raw:
    """The keys that `load` reads, and no defaults."""
    raw = read_raw(path) if path else {}
    for override in overrides:
        _override(raw, override)
    return raw


def read_raw(path: Path) -> Raw:
    """The keys of a run file as they are written, for `assign` and `assembled`."""
    return _read(path)[0]


def assembled(raw: Raw) -> Config:
    """The configuration that `raw` describes. Raises `Refused` with every problem found."""
    return _assemble(raw, Resolved())


def load_resolved(path: Path) -> Config:
    """Read the `config.toml` of a run, with the noise it was calibrated to. Raises `Refused`."""
    return _assemble(*_read(path))


def resolved(text: str) -> Config:
    """The configuration whose `toml` is `text`, with the noise it was calibrated to."""
    document = tomllib.loads(text)
    document.pop("format")
    return _assemble(*_parted(document, "the configuration"))


def overridden(config: Config, overrides: Iterable[str]) -> Config:
    """`config` with `section.key=value` overrides. Raises `Refused`."""
    raw = config.values()
    for override in overrides:
        _override(raw, override)
    return _assemble(raw, Resolved(config.noise_multiplier, config.admitted))


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The TOML of a file of ours, without its "format", which is checked. Raises `Refused`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise Refused(f"{path} does not exist; expected a {what} file (TOML)") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refused(f"{path} is not valid TOML: {error}") from error
    except ValueError as error:  # no file can have this name
        raise Refused(f"{str(path)!r} cannot be read: {error}") from error
    found = document.pop("format", FORMAT)
    if found != FORMAT:
        raise Refused(
            f"{path} has format = {found!r}; this version of privfed reads format = {FORMAT}"
            + ("; update privfed" if isinstance(found, int) and found > FORMAT else "")
        )
    return document


def _read(path: Path) -> tuple[Raw, Resolved]:
    return _parted(read_toml(path, "run"), str(path))


def _parted(document: dict[str, Any], path: str) -> tuple[Raw, Resolved]:
    """The sections of a run file, and what was solved for."""
    solved = Resolved.read(document.pop("resolved", None))
    client = document.get("client")
    if isinstance(client, dict) and "privacy" in client:
        document["client.privacy"] = client.pop("privacy")
    for name, section in document.items():
        if name not in SECTIONS:
            raise Refused(f"{path}: unknown section [{name}]; {expected(name, list(SECTIONS))}")
        if not isinstance(section, dict):
            raise Refused(f"{path}: {name} is {section!r}; expected a section [{name}]")
    return document, solved


def _override(raw: Raw, override: str) -> None:
    """Apply one `--set`."""
    target, equals, text = override.partition("=")
    if not equals or "." not in target:
        raise Refused(f"--set {override}: expected section.key=value, e.g. server.lr=0.5")
    try:
        assign(raw, target.strip(), _value(text.strip()))
    except Refused as refused:
        raise Refused(f"--set {override}: {refused}") from refused


def assign(raw: Raw, target: str, value: Any) -> None:
    """Set the key `target`, "section.key". Raises `Refused` where there is no such section.

    Naming another part drops the keys that only the former part knew.
    """
    name, dot, key = target.rpartition(".")
    if not dot:
        raise Refused(f"{target!r} is no section.key, as server.lr")
    if name not in SECTIONS:
        raise Refused(f"unknown section {name!r}; {expected(name, [*SECTIONS])}")
    section = raw.setdefault(name, {})
    if key in SECTIONS[name].parts and value != section.get(key):
        before = _fields(name, section)
        section[key] = value
        after = _fields(name, section)
        for stale in (before - after) & set(section):
            del section[stale]
    section[key] = value
    if name == "privacy" and key in ("epsilon", "noise_multiplier"):
        section.pop({"epsilon": "noise_multiplier"}.get(key, "epsilon"), None)


def _value(text: str) -> Any:
    """A TOML value, or else the text itself: `server.optimizer=fedavg` needs no quotes."""
    try:
        document = tomllib.loads(f"value = {text}")
        return document["value"] if len(document) == 1 else text
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    try:
        return float(text)  # .5 and 1. are no TOML, but everybody means a number
    except ValueError:
        return text


def _chosen(name: str, section: Mapping[str, Any]) -> dict[str, tuple[str, type[Any]]]:
    """The parts that `section` names: kind -> (name, class)."""
    chosen: dict[str, tuple[str, type[Any]]] = {}
    for key, (kind, default) in SECTIONS[name].parts.items():
        part = section.get(key, default)
        if kind == "partition" and part == "":
            part = "natural" if chosen["source"][1].natural_partition else "iid"
        if not isinstance(part, str):
            raise Refused(f"{name}.{key} is {part!r}; expected a name, as text")
        chosen[kind] = (part, find(kind, part, f"{name}.{key}"))
    return chosen


def named(raw: Raw, kind: str) -> type[Any]:
    """The class of the part of `kind` that `raw` names, or leaves to its default."""
    section = next(name for name, known in SECTIONS.items() if kind in _kinds(known))
    return _chosen(section, raw.get(section, {}))[kind][1]


def _kinds(section: Section) -> set[str]:
    return {kind for kind, _ in section.parts.values()}


def _fields(name: str, section: Mapping[str, Any]) -> set[str]:
    """All keys that `section` may hold, as it names its parts."""
    models = [SECTIONS[name].own, *(model for _, model in _chosen(name, section).values())]
    return {key for model in models for key in model.model_fields} | SECTIONS[name].parts.keys()


def _assemble(raw: Raw, solved: Resolved) -> Config:
    own: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems: list[str] = []
    for name, section in SECTIONS.items():
        given = raw.get(name, {})
        known = _fields(name, given)
        problems += [
            f"{name}.{key} is not a known key{_owner(name, key)}; {expected(key, list(known))}"
            for key in sorted(given.keys() - known)
        ]
        own[name] = _validate(section.own, name, given, problems)
        for kind, (part, model) in _chosen(name, given).items():
            names[kind] = part
            parts[kind] = _validate(model, name, given, problems)
    if (
        parts["source"] is not None
        and parts["source"].found
        and "clients" not in raw.get("data", {})
    ):
        problems.append(
            f"data.clients is missing: declare about how many clients {names['source']} holds, as "
            "a public constant; it is never counted from private data"
        )
    if problems:
        raise Refused("\n".join(dict.fromkeys(problems)))
    for name in own["aggregation"].before:
        find("before", name, "aggregation.before")
    parts["sampler"] = parts["sampler"].of(own["data"].clients)
    own["privacy"] = _one_budget(own["privacy"])
    return Config(own, parts, names, solved.noise_multiplier, solved.admitted)


def _owner(name: str, key: str) -> str:
    """Which other part of the section would know `key`, if any does."""
    for naming, (kind, _) in SECTIONS[name].parts.items():
        for part in BUILT_IN[kind]:
            if key in find(kind, part, f"{name}.{naming}").model_fields:
                return f" here (it belongs to {name}.{naming} = {part!r})"
    return ""


def _validate(model: type[Part], name: str, given: Mapping[str, Any], problems: list[str]) -> Any:
    try:
        return model.model_validate({key: given[key] for key in given if key in model.model_fields})
    except ValidationError as error:
        for problem in error.errors():
            key = ".".join(str(part) for part in (name, *problem["loc"]))
            if problem["type"] == "missing":
                problems.append(f"{key} is missing, and has no default; set it")
                continue
            message = problem["msg"].removeprefix("Value error, ")
            if not problem["loc"]:
                problems.append(f"{name}: {message}")
                continue
            problems.append(f"{key} is {problem['input']!r}: {message[:1].lower()}{message[1:]}")
        return None


def _one_budget(privacy: Privacy) -> Privacy:
    if privacy.epsilon is not None and privacy.noise_multiplier is not None:
        raise Refused(
            "privacy.epsilon and privacy.noise_multiplier are both set; expected exactly one: "
            "epsilon is a budget that noise is solved for, noise_multiplier fixes the noise"
        )
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        return privacy.model_copy(update={"epsilon": DEFAULT_EPSILON})
    return privacy
