"""Assembles a configuration from the keys of a run file: finds parts, validates their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from privfed.config.config import AUTO, Config, Raw
from privfed.config.mistakes import Mistake, listed_mistakes, mistakes, named_elsewhere
from privfed.config.resolved import Resolved
from privfed.config.sections import SECTIONS, Data, Privacy
from privfed.core.errors import Refused
from privfed.core.parts import Part, expected, find, passed
from privfed.core.registry import BUILT_IN
from privfed.models.form import Task
from privfed.models.loss import Loss
from privfed.models.recipes import LinearModel

DEFAULT_EPSILON = 4.0
UNSOLVED = Resolved()
_CHOSEN_AT_START = ("client.lr", "privacy.clip")
"""Keys that may be "auto"."""


def assembled(raw: Raw, solved: Resolved = UNSOLVED) -> Config:
    """Returns the configuration that the keys `raw` describe.

    Args:
      raw: the keys of each section, as written in a run file.
      solved: values that a plan solved for, such as the noise multiplier; none by default.

    Raises:
      Refused: if keys are unknown, missing or invalid; one message lists up to ten of them. An
        unknown part, or a contradiction between valid keys, is reported in a message of its own.
    """
    raw, left_open = _without_open(_with_loss(raw))
    raw = _suited(raw)
    sections: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    names: dict[str, str] = {}
    given: dict[str, type[Any]] = {}
    problems: list[Mistake] = []
    for name, section in SECTIONS.items():
        keys = raw.get(name, {})
        problems += _unknown_keys(name, keys)
        sections[section.field] = _validate(section.keys, name, keys, problems)
        for kind, (part, model) in _chosen(name, keys).items():
            names[kind] = part
            parts[kind] = _validate(model, name, keys, problems)
        given |= {kind: keys[key] for key, kind in _passed(name, keys).items()}
    problems += _undeclared_clients(raw, parts["source"], names["source"])
    if sections["aggregation"] is not None:
        _check_before(sections["aggregation"].before, raw, problems)
    if problems:
        raise Refused(listed_mistakes(problems), key=problems[0].key)
    parts["sampler"] = parts["sampler"].of(sections["data"].clients)
    sections["privacy"] = _one_budget(sections["privacy"])
    del sections[""]
    if left_open and sections["data"].site_partition == "elsewhere":
        raise Refused(
            f'{left_open[0]} is "auto", but with data.site_partition = "elsewhere" sites approve '
            f"all values of the run file before the run starts; set {left_open[0]} to a number",
            key=left_open[0],
        )
    return Config(**sections, **parts, names=names, given=given, open=left_open, **vars(solved))


def named(raw: Raw, kind: str) -> type[Any]:
    """Returns the class of the part of `kind` that `raw` names, or of the default part.

    Raises `Refused` if the named part is unknown.
    """
    section = next(
        name
        for name, known in SECTIONS.items()
        if kind in {part_kind for part_kind, _ in known.parts.values()}
    )
    return _chosen(section, raw.get(section, {}))[kind][1]


def loss_of(raw: Raw) -> Loss | None:
    """Returns the loss that `raw` describes.

    None if the loss's keys are invalid, or [model] names an unknown part.
    """
    try:
        loss: Loss | None = _built(raw, "model", "loss")
        return loss
    except Refused:
        return None


def known_keys(name: str, section: Mapping[str, Any]) -> set[str]:
    """Returns all keys that a section may have, given the parts that it names.

    Args:
      name: the name of the section.
      section: the keys of the section, as written.
    """
    keys = {key for model in _models(name, section) for key in model.model_fields}
    return keys | SECTIONS[name].parts.keys()


def _chosen(name: str, section: Mapping[str, Any]) -> dict[str, tuple[str, type[Any]]]:
    """Returns the parts that `section` names, or their defaults: kind -> (name, class).

    Raises `Refused` for an unknown part, or a value that is neither a name nor a class.
    """
    chosen: dict[str, tuple[str, type[Any]]] = {}
    for key, (kind, default) in SECTIONS[name].parts.items():
        part, place = section.get(key, default), f"{name}.{key}"
        if kind == "partition" and part == "":
            part = "natural" if chosen["source"][1].natural_partition else "iid"
        if isinstance(part, type):
            chosen[kind] = passed(kind, part, place)
        elif isinstance(part, str):
            chosen[kind] = (part, find(kind, part, place))
        else:
            raise Refused(f"{place} is {part!r}; expected a name, as text", key=place)
    return chosen


def _passed(name: str, section: Mapping[str, Any]) -> dict[str, str]:
    """Returns key -> kind of part, for the keys of `section` whose value is a class."""
    naming = SECTIONS[name].parts
    return {key: kind for key, (kind, _) in naming.items() if isinstance(section.get(key), type)}


def _models(name: str, section: Mapping[str, Any]) -> list[type[Part]]:
    """Returns the classes that define keys of `section`: the section itself and its parts."""
    return [SECTIONS[name].keys, *(model for _, model in _chosen(name, section).values())]


def default_keys(name: str) -> set[str]:
    """Returns all keys that the section `name` has if it names no part or its default parts."""
    return {*SECTIONS[name].parts}.union(*(model.model_fields for model in _models(name, {})))


def keys_meant(written: str, section: str = "") -> list[str]:
    """Returns the keys, "section.key", that are called `written`, here or in another library.

    Args:
      written: the name, which is not a key at the place where the user wrote it.
      section: the section in which the user wrote it; if keys of this section are among the
        results, only those are returned.
    """
    name = written.replace("-", "_").casefold()
    owners = [each for each in SECTIONS if "." not in each and name in default_keys(each)]
    keys = [*(f"{owner}.{name}" for owner in owners), *named_elsewhere(name)]
    return [key for key in keys if key.rpartition(".")[0] == section] or keys


def _with_loss(raw: Raw) -> Raw:
    """Returns `raw`, with the loss for its declared labels if `raw` names none.

    The loss is "multi_label" for several label columns, and "squared_error" for a number to
    predict; for classes, `raw` is returned unchanged, since the default loss fits them.
    """
    data, model = raw.get("data", {}), raw.get("model", {})
    several, number = isinstance(data.get("label"), list), bool(data.get("label_bounds"))
    if "loss" in model or not (several or number):
        return raw
    return {**raw, "model": {**model, "loss": "multi_label" if several else "squared_error"}}


def _without_open(raw: Raw) -> tuple[Raw, tuple[str, ...]]:
    """Returns `raw` without the keys that are "auto", and the names of these keys.

    Only client.lr and privacy.clip may be "auto". If one is left out, it is "auto", unless the
    model is linear, clients are at sites on their own machines, or the named parts give the key
    another default than the default parts do.
    """
    others = {name: dict(section) for name, section in raw.items()}
    linear = isinstance(_chosen("model", raw.get("model", {}))["model"][1], LinearModel)
    apart = raw.get("data", {}).get("site_partition") == "elsewhere"
    open_keys: list[str] = []
    for target in _CHOSEN_AT_START:
        name, _, key = target.rpartition(".")
        section = others.setdefault(name, {})
        if key in section:
            left_open = section[key] == AUTO and key in known_keys(name, section)
        else:
            recommended = _default(name, section, key) == _default(name, {}, key)
            left_open = not linear and not apart and recommended
        if left_open:
            section.pop(key, None)
            open_keys.append(target)
    return others, tuple(open_keys)


def _suited(raw: Raw) -> Raw:
    """Returns `raw` with the defaults that the loss recommends for keys that are left out.

    If the chosen part's own default for a key differs from that of the section's default part, the
    chosen part's default has precedence. Returns `raw` unchanged if a section is invalid;
    `assembled` then reports the reason.
    """
    data = _validate(Data, "data", raw.get("data", {}), [])
    source, sampler = _built(raw, "data", "source"), _built(raw, "cohort", "sampler")
    loss = _built(raw, "model", "loss")
    if None in (data, source, sampler, loss):
        return raw
    suited = {name: dict(section) for name, section in raw.items()}
    cohort = min(sampler.of(data.clients).size, data.clients)  # a larger cohort is refused later
    task = Task(source.squared_norm, float(cohort))
    for target, value in loss.defaults(task).items():
        name, _, key = target.rpartition(".")
        given = suited.setdefault(name, {})
        if key not in given and _default(name, given, key) == _default(name, {}, key):
            given[key] = value
    return suited


def _built(raw: Raw, name: str, kind: str) -> Any:
    """Returns the part of `kind` that section `name` describes; None if a key of it is invalid.

    Raises `Refused` if the section names an unknown part.
    """
    given = raw.get(name, {})
    return _validate(_chosen(name, given)[kind][1], name, given, [])


def _default(name: str, section: Mapping[str, Any], key: str) -> Any:
    """Returns the default of `key` in `section`, given its named parts; None if they lack it."""
    models = _models(name, section)
    fields = [model.model_fields[key] for model in models if key in model.model_fields]
    return fields[0].default if fields else None


def _unknown_keys(name: str, given: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields a mistake for each key in `given` that neither the section nor its parts define."""
    known = known_keys(name, given)
    for key in sorted(given.keys() - known):
        yield Mistake(f"{name}.{key}", partial(_unknown, name, key, list(known)))


def _unknown(name: str, key: str, known: list[str]) -> str:
    meant = [target for target in keys_meant(key, name) if target != f"{name}.{key}"]
    instead = expected(key, known, *meant)
    return f"{name}.{key} is not a known key{_owner(name, key)}; {instead}"


def _owner(name: str, key: str) -> str:
    """Returns a text that names the built-in part that defines `key`; "" if none does."""
    for naming, (kind, _) in SECTIONS[name].parts.items():
        for part in BUILT_IN[kind]:
            if key in find(kind, part, f"{name}.{naming}").model_fields:
                return f" here (it belongs to {name}.{naming} = {part!r})"
    return ""


def _undeclared_clients(raw: Raw, source: Any, name: str) -> Iterator[Mistake]:
    """Yields a mistake if data.clients is missing and the source `name` has real clients."""
    if source is not None and source.holds_real_clients and "clients" not in raw.get("data", {}):
        text = (
            f"data.clients is missing; declare the approximate number of clients of {name} as a "
            "public constant (it is never counted from private data)"
        )
        yield Mistake("data.clients", lambda: text)


def _validate(
    model: type[Part], name: str, given: Mapping[str, Any], problems: list[Mistake]
) -> Any:
    """Returns an instance of `model` with the keys in `given` that it defines.

    If the keys are invalid, returns None and appends the mistakes to `problems`.
    """
    values = {key: given[key] for key in given if key in model.model_fields}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems += mistakes(error, name, values, model)
        return None


def _check_before(names: Sequence[str], raw: Raw, problems: list[Mistake]) -> None:
    """Appends the mistakes in the keys of the pre-aggregators `names`, such as missing keys.

    Raises `Refused` for an unknown name.
    """
    given = raw.get("aggregation", {})
    for name in names:
        part = find("before", name, "aggregation.before")
        fields = part.model_fields.items()
        missing = [key for key, field in fields if field.is_required() and key not in given]
        for key in (f"aggregation.{key}" for key in missing):
            text = f"{key} is missing, and {name!r} in aggregation.before needs it; set it, or "
            problems.append(Mistake(key, partial(str, f"{text}remove {name!r}")))
        if not missing:
            _validate(part, "aggregation", given, problems)


def _one_budget(privacy: Privacy) -> Privacy:
    """Returns `privacy`, with the default budget if neither budget nor noise multiplier is set.

    Raises `Refused` if both are set.
    """
    if privacy.epsilon is not None and privacy.noise_multiplier is not None:
        raise Refused(
            "privacy.epsilon and privacy.noise_multiplier are both set; expected exactly one: "
            "epsilon is a budget, for which noise is solved; noise_multiplier fixes the noise",
            key="privacy.epsilon",
        )
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        return privacy.model_copy(update={"epsilon": DEFAULT_EPSILON})
    return privacy
