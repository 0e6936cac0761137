"""The typed configuration of a run: sections and keys, assembled from the parts' own files.

A TOML file (or nothing: the default run) and `--set section.key=value` become frozen, strict
models. What is written goes before what the task's loss holds best, and that before a field's own
default. Unknown keys, wrong types and values out of range are refused here, all of them in one
message; what may be combined is `privfed.plan.plan`'s business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from accounting.documents import from_toml
from privfed.config.devices import Devices
from privfed.config.mistakes import Mistake, mistakes
from privfed.config.sections import (
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
from privfed.config.task import Task
from privfed.errors import Refused
from privfed.parts import BUILT_IN, Part, expected, find

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
    document = from_toml(text)
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


def resolved(text: str, of: str = "the configuration") -> Config:
    """The configuration whose `toml` is `text`, with the noise it was calibrated to.

    Raises `Refused`, calling the text `of`.
    """
    return _assemble(*_parted(_of_format(from_toml(text), of), of))


def outside(text: str, of: str) -> list[str]:
    """The keys of a run file that name parts from outside, whose code runs as they are built."""
    raw, _ = _parted(_of_format(from_toml(text), of), of)
    named = [
        (f"{name}.{key}", kind, raw.get(name, {}).get(key, default))
        for name, section in SECTIONS.items()
        for key, (kind, default) in section.parts.items()
    ]
    before = raw.get("aggregation", {}).get("before", [])
    named += [("aggregation.before", "before", one) for one in before if isinstance(before, list)]
    return [key for key, kind, part in named if part not in ["", *BUILT_IN[kind]]]


def overridden(config: Config, overrides: Iterable[str]) -> Config:
    """`config` with `section.key=value` overrides. Raises `Refused`."""
    raw = config.values()
    for override in overrides:
        _override(raw, override)
    return _assemble(raw, Resolved(config.noise_multiplier, config.admitted))


def restated(config: Config, path: Path, overrides: Iterable[str]) -> Config:
    """`config` with the keys that the run file at `path` states, and overrides. Raises `Refused`.

    Keys that it leaves out stay as they are, whatever later versions take by default.
    """
    raw = config.values()
    for name, section in as_written(path, overrides).items():
        for key, value in section.items():
            assign(raw, f"{name}.{key}", value)
    return _assemble(raw, Resolved(config.noise_multiplier, config.admitted))


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The TOML of a file of ours, without its "format", which is checked. Raises `Refused`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise Refused(f"{path} does not exist; expected a {what} file (TOML)") from error
    except (OSError, ValueError) as error:  # no UTF-8, or a name that no file can have
        raise Refused(f"{str(path)!r} cannot be read: {error}") from error
    try:
        document = from_toml(text)
    except ValueError as error:
        raise Refused(f"{path} is not valid TOML: {error}") from error
    return _of_format(document, str(path))


def _of_format(document: dict[str, Any], path: str) -> dict[str, Any]:
    """`document` without its "format". Raises `Refused` where that is another one."""
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
            known = expected(name, list(SECTIONS))
            raise Refused(f"{path}: unknown section [{name}]; {known}", key=name)
        if not isinstance(section, dict):
            raise Refused(f"{path}: {name} is {section!r}; expected a section [{name}]", key=name)
    return document, solved


def _override(raw: Raw, override: str) -> None:
    """Apply one `--set`."""
    target, equals, text = override.partition("=")
    if not equals or "." not in target:
        raise Refused(f"--set {override}: expected section.key=value, e.g. server.lr=0.5")
    try:
        assign(raw, target.strip(), _value(text.strip()))
    except Refused as refused:
        raise Refused(f"--set {override}: {refused}", key=refused.key) from refused


def assign(raw: Raw, target: str, value: Any) -> None:
    """Set the key `target`, "section.key". Raises `Refused` where there is no such section.

    Naming another part drops the keys that only the former part knew.
    """
    name, dot, key = target.rpartition(".")
    if not dot:
        raise Refused(f"{target!r} is no section.key, as server.lr")
    if name not in SECTIONS:
        raise Refused(f"unknown section {name!r}; {expected(name, [*SECTIONS])}", key=name)
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
        document = from_toml(f"value = {text}")
        return document["value"] if len(document) == 1 else text
    except ValueError:
        pass
    try:
        return float(text)  # .5 and 1. are no TOML, but everybody means a number
    except ValueError:
        return text


def _chosen(name: str, section: Mapping[str, Any]) -> dict[str, tuple[str, type[Any]]]:
    """The parts that `section` names: kind -> (name, class)."""
    chosen: dict[str, tuple[str, type[Any]]] = {}
    for key, (kind, default) in SECTIONS[name].parts.items():
        part, place = section.get(key, default), f"{name}.{key}"
        if kind == "partition" and part == "":
            part = "natural" if chosen["source"][1].natural_partition else "iid"
        if not isinstance(part, str):
            raise Refused(f"{place} is {part!r}; expected a name, as text", key=place)
        chosen[kind] = (part, find(kind, part, place))
    return chosen


def named(raw: Raw, kind: str) -> type[Any]:
    """The class of the part of `kind` that `raw` names, or leaves to its default."""
    section = next(name for name, known in SECTIONS.items() if kind in _kinds(known))
    return _chosen(section, raw.get(section, {}))[kind][1]


def loss_of(raw: Raw) -> Any:
    """The loss that `raw` describes; None where that is refused."""
    try:
        return _built(raw, "model", "loss")
    except Refused:
        return None


def _kinds(section: Section) -> set[str]:
    return {kind for kind, _ in section.parts.values()}


def _fields(name: str, section: Mapping[str, Any]) -> set[str]:
    """All keys that `section` may hold, as it names its parts."""
    models = [SECTIONS[name].own, *(model for _, model in _chosen(name, section).values())]
    return {key for model in models for key in model.model_fields} | SECTIONS[name].parts.keys()


def _suited(raw: Raw) -> Raw:
    """`raw`, with what its task's loss holds best for keys that it leaves out.

    A part whose own default is not the one that a section's default part has keeps it. Unchanged
    where what is asked cannot be built, of which `_assemble` says why.
    """
    data = _validate(Data, "data", raw.get("data", {}), [])
    source, sampler = _built(raw, "data", "source"), _built(raw, "cohort", "sampler")
    loss = _built(raw, "model", "loss")
    if None in (data, source, sampler, loss):
        return raw
    suited = {name: dict(section) for name, section in raw.items()}
    task = Task(source.squared_norm, float(sampler.of(data.clients).size))
    for target, value in loss.defaults(task).items():
        name, _, key = target.rpartition(".")
        given = suited.setdefault(name, {})
        if key not in given and _default(name, given, key) == _default(name, {}, key):
            given[key] = value
    return suited


def _built(raw: Raw, name: str, kind: str) -> Any:
    """The part of `kind` that section `name` describes; None where it is refused."""
    given = raw.get(name, {})
    return _validate(_chosen(name, given)[kind][1], name, given, [])


def _default(name: str, section: Mapping[str, Any], key: str) -> Any:
    """What `key` is where `section` leaves it out, as it names its parts; None: nothing there."""
    models = [SECTIONS[name].own, *(model for _, model in _chosen(name, section).values())]
    fields = [model.model_fields[key] for model in models if key in model.model_fields]
    return fields[0].default if fields else None


def _assemble(raw: Raw, solved: Resolved) -> Config:
    raw = _suited(raw)
    own: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems: list[Mistake] = []
    for name, section in SECTIONS.items():
        given = raw.get(name, {})
        known = _fields(name, given)
        problems += [
            Mistake(f"{name}.{key}", _unknown(name, key, known))
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
            Mistake(
                "data.clients",
                f"data.clients is missing: declare about how many clients {names['source']} holds, "
                "as a public constant; it is never counted from private data",
            )
        )
    if problems:
        reasons = "\n".join(dict.fromkeys(problem.text for problem in problems))
        raise Refused(reasons, key=problems[0].key)
    for name in own["aggregation"].before:
        find("before", name, "aggregation.before")
    parts["sampler"] = parts["sampler"].of(own["data"].clients)
    own["privacy"] = _one_budget(own["privacy"])
    return Config(own, parts, names, solved.noise_multiplier, solved.admitted)


def _unknown(name: str, key: str, known: set[str]) -> str:
    here = f"{name}.{key} is not a known key{_owner(name, key)}"
    return f"{here}; {expected(key, list(known))}"


def _owner(name: str, key: str) -> str:
    """Which other part of the section would know `key`, if any does."""
    for naming, (kind, _) in SECTIONS[name].parts.items():
        for part in BUILT_IN[kind]:
            if key in find(kind, part, f"{name}.{naming}").model_fields:
                return f" here (it belongs to {name}.{naming} = {part!r})"
    return ""


def _validate(
    model: type[Part], name: str, given: Mapping[str, Any], problems: list[Mistake]
) -> Any:
    known = {key: given[key] for key in given if key in model.model_fields}
    try:
        return model.model_validate(known)
    except ValidationError as error:
        problems += mistakes(error, name, known, model)
        return None


def _one_budget(privacy: Privacy) -> Privacy:
    if privacy.epsilon is not None and privacy.noise_multiplier is not None:
        raise Refused(
            "privacy.epsilon and privacy.noise_multiplier are both set; expected exactly one: "
            "epsilon is a budget that noise is solved for, noise_multiplier fixes the noise",
            key="privacy.epsilon",
        )
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        return privacy.model_copy(update={"epsilon": DEFAULT_EPSILON})
    return privacy
