"""Builds a configuration from the arguments of a call: keys of a run file, and objects."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from privfed.api.answer import plain
from privfed.api.population import DeclaredPopulation
from privfed.config.assembly import assembled, keys_meant
from privfed.config.config import Config, Raw
from privfed.config.overrides import assign
from privfed.config.reading import read_raw, reassembled
from privfed.config.sections import SECTIONS
from privfed.core.deferred import nn
from privfed.core.errors import Refused
from privfed.core.parts import expected, find, imported
from privfed.core.registry import ADAPTERS
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.sources.table import GivenArrays, GivenTable, Table
from privfed.data.tables import array_table
from privfed.data.tables.arrow import is_dict_of_tables, is_table, settled
from privfed.data.tables.readable import Readable, TableFile, TableObject
from privfed.models.given_module import GivenModule, code_digest, layout_digest
from privfed.models.recipes import UserNetwork

if TYPE_CHECKING:
    from privfed.data.federation import Examples

_SHORT = {
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "rounds": "run.rounds",
    "simulation": "run.simulation_metrics",
}
"""Keys of a run file that are also separate arguments, by the name of the argument."""


def configuration(
    population: Any, model: Any, short: Mapping[str, Any], sections: Mapping[str, Any]
) -> Config:
    """Returns the configuration of a run.

    Args:
      population: the first argument of `privfed.train`.
      model: a name, a module, a function that returns a module, or the keys of [model]; None for
        the default.
      short: values of the arguments in `_SHORT`, by name; None if left out.
      sections: the keys of each section.

    Raises:
      Refused: with every problem found.
    """
    raw = _of_population(population)
    given = {name: section for name, section in sections.items() if section is not None}
    if model is not None:
        given["model"] = dict(model) if isinstance(model, Mapping) else {"name": model}
    for name, section in given.items():
        _assign_section(raw, name, section)
    for argument, key in _SHORT.items():
        if short.get(argument) is not None:
            _refuse_twice(given, argument, key)
            assign(raw, key, plain(short[argument]))
    config = assembled(raw)
    declared = isinstance(population, DeclaredPopulation) and population.two_classes
    if not declared or "loss" in given.get("model", {}):
        return config
    assign(raw, "model.loss", _loss_of_outputs(config))
    return assembled(raw)


def _loss_of_outputs(config: Config) -> Any:
    """Returns the name of the loss for two classes that suits the outputs of a user's network.

    The network is run on a synthetic example of the declared form; if that fails, the loss is
    unchanged, and the run is refused later. The loss of a built-in model is also unchanged.

    Raises:
      Refused: if the network has neither one output nor two.
    """
    loss, model = config.names["loss"], config.model
    if not isinstance(model, UserNetwork | GivenModule):
        return loss
    from privfed.models.build import count_outputs

    try:
        count = count_outputs(model, _declared_form(config), config.start.output)
    except Refused:
        return loss
    losses = {1: loss, 2: "cross_entropy"}
    if count is None or count in losses:
        return losses.get(count or 1)
    raise Refused(
        f"model.name: the network has {count} outputs, but the label has two classes; expected one "
        'output (model.loss = "binary_cross_entropy") or two (model.loss = "cross_entropy")',
        key="model.loss",
    )


def _declared_form(config: Config) -> Examples:
    """Returns a synthetic example of the declared form. Raises `Refused` for column patterns."""
    import torch

    from privfed.data.federation import Examples
    from privfed.data.inputs import synthetic_inputs
    from privfed.data.sources.declared_examples import declared_example

    source = config.source
    if not isinstance(source, GivenArrays):
        return declared_example(cast("DeclaredTable", source))
    x = synthetic_inputs(source.inputs, 1) if source.inputs else torch.zeros(1, *source.shape)
    return Examples(x, torch.zeros(1, dtype=torch.int64), 2, inputs=source.inputs)


_ROWS = "the rows"
"""Name of passed rows in messages."""


def other_rows(rows: Any) -> Callable[[Config], Config]:
    """Returns a function that changes a configuration to read `rows` (a table or a path)."""

    def changed(config: Config) -> Config:
        raw, source, named = config.raw(), config.source, config.names["source"]
        if not isinstance(source, DeclaredTable):
            if not hasattr(source, "path"):
                raise Refused(
                    f"other data are passed, but the source {named!r} of this run reads no data; "
                    "leave them out, or use a run that was trained on a table or on files"
                )
            if not isinstance(rows, str | Path):
                raise Refused(
                    "data is no path, but this run reads its clients from the source "
                    f"{named!r}; pass the path of other data of that form"
                )
            assign(raw, "data.path", str(rows))
            return reassembled(raw, config)
        table = _readable(rows, source)
        kind: type[DeclaredTable] = Table
        data: dict[str, Any] = {"source": "table", "path": str(rows)}
        if not isinstance(table, TableFile):
            given = GivenArrays if isinstance(table, array_table.ArrayTable) else GivenTable
            kind, data = given, {"source": given.of(table)}
        names = table.names()
        client = source.client if source.client in names else ""  # only needed for training
        site = source.site if client and source.site in names else ""
        others = type(source).model_fields.keys() - kind.model_fields
        section = {key: value for key, value in raw["data"].items() if key not in others}
        raw["data"] = {**section, **data, "client": client, "site": site}
        return reassembled(raw, config)

    return changed


def _readable(rows: Any, source: DeclaredTable) -> Readable:
    """Returns `rows` as a table that privfed reads; refuses rows that do not fit `source`."""
    if isinstance(rows, str | Path):
        return TableFile(Path(rows), source.dialect)
    if isinstance(source, GivenArrays):
        if isinstance(rows, tuple) or array_table.is_dataset(rows):
            return array_table.of_pair(rows, source.shapes, _ROWS)
        return array_table.of_inputs(rows, source.shapes, _ROWS)
    return TableObject(settled(rows), _ROWS, tuple(source.missing_words))


def passed_on_resume(model: Any, population: Any, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the classes and instances of parts that were passed for an existing run, by kind.

    Args:
      model: the network, if one was passed.
      population: the declared data, if they were passed.
      sections: parts by section and key.

    Raises:
      Refused: for a key that names no part, a part given by its name, or undeclared data.
    """
    passed: dict[str, Any] = {}
    if model is not None:
        passed["model"] = model
    if population is not None:
        passed["source"] = _source_again(population)
    for name, section in sections.items():
        naming = SECTIONS[name].parts if name in SECTIONS else {}
        if not isinstance(section, Mapping):
            raise Refused(f"{name} is {section!r}; expected its parts, as dict(key=part)")
        for key, part in section.items():
            if key not in naming:
                known = [f"{each}.{key}" for each in SECTIONS for key in SECTIONS[each].parts]
                raise Refused(f"{name}.{key} names no part; expected one of {', '.join(known)}")
            passed[naming[key][0]] = part
    for kind, part in passed.items():
        if isinstance(part, str):
            raise Refused(
                f"the {kind} is passed as {part!r}, but a run already knows its parts by name; "
                "leave the argument out, or pass the part itself"
            )
    return passed


def _source_again(population: Any) -> type[Any]:
    """Returns the class of the source of `population`; refuses undeclared data and files."""
    if not isinstance(population, DeclaredPopulation):
        raise Refused(_undeclared(population))
    source = population.section["source"]
    if not isinstance(source, type):
        raise Refused(
            "data is a table in a file, but a run finds such a file by itself; leave data out"
        )
    return source


def part_class(kind: str, passed: Any) -> type[Any]:
    """Returns the class of a part that was passed. Raises `Refused` if it is not a part."""
    named, _ = _part(kind, passed)
    part = named if isinstance(named, type) else find(kind, named, kind)
    return cast("type[Any]", part)


def _of_population(population: Any) -> Raw:
    """Returns a run file's keys from the first argument of a call; refuses undeclared data."""
    if population is None:
        return {}
    if isinstance(population, DeclaredPopulation):
        return {"data": dict(population.section), "model": {"loss": population.loss}}
    if isinstance(population, Config):
        return population.raw()
    if isinstance(population, str | Path) and Path(population).suffix.lower() == ".toml":
        return read_raw(Path(population))
    raise Refused(_undeclared(population))


def _undeclared(population: Any) -> str:
    """Returns the message that `population` must be declared, with the call that declares it."""
    what = (
        repr(str(population))
        if isinstance(population, str | Path)
        else f"a {type(population).__name__}"
    )
    why = (
        "the inputs of a model (columns, bounds, classes, number of clients) have to be declared, "
    )
    why += "since reading them from private data would be a further release"
    if is_dict_of_tables(population):
        kind = type(population).__name__
        return f"population is a {kind} of several tables; declare and pass one"
    if isinstance(population, Mapping):
        call = (
            "privfed.Arrays(population, shape=(28, 28), bounds=(0, 255), classes=10, clients=500)"
        )
    elif is_table(population) or isinstance(population, str | Path):
        call = (
            'privfed.declare(public_sample, label="…", client="…").table(population, clients=500), '
            'or by hand privfed.Table(population, label="…", client="…", clients=500, '
            'labels=["no", "yes"], features={"age": (18, 94)})'
        )
    else:
        return (
            f"population is {what}; expected a privfed.Table, privfed.Arrays, a Config, the path "
            "of a run file (.toml), or nothing for the default run"
        )
    return f"population is {what} without a declaration: {why}. Pass {call}"


def _assign_section(raw: Raw, name: str, section: Any) -> None:
    """Sets the keys of the section `name` from an argument; refuses unknown names."""
    if name not in SECTIONS:
        raise Refused(f"unknown argument {name!r}; {_instead(name)}")
    if not isinstance(section, Mapping):
        raise Refused(f"{name} is {section!r}; expected its keys, as dict(key=value)", key=name)
    keys = dict(section)
    if name == "client" and "privacy" in keys:
        _assign_section(raw, "client.privacy", keys.pop("privacy"))
    naming = SECTIONS[name].parts
    for key in sorted(keys, key=lambda key: key not in naming):  # parts first: they own keys
        named, further = _part(naming[key][0], keys[key]) if key in naming else (keys[key], {})
        assign(raw, f"{name}.{key}", plain(named))
        for field, value in further.items():
            if field in keys:
                raise Refused(
                    f"{name}.{field} is given separately and in {name}.{key}, but must be given "
                    "once; remove one of the two"
                )
            assign(raw, f"{name}.{field}", plain(value))


def _instead(argument: str) -> str:
    """Returns a hint with the arguments that may be meant; if there are none, the accepted ones."""
    meant = keys_meant(argument)
    if not meant:
        return expected(argument, [*(name for name in SECTIONS if "." not in name), *_SHORT])
    short = {key: f"{name}=…" for name, key in _SHORT.items()}
    parted = [key.split(".") for key in meant]
    calls = [short.get(".".join(key), f"{key[0]}=dict({key[1]}=…)") for key in parted]
    return f"it is a key of a section; pass {' or '.join(calls)}"


def _part(kind: str, named: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the name or class by which the configuration states a passed part, and its keys."""
    if kind == "model" and isinstance(named, nn.Module):
        part = GivenModule.of(named)
        return part, {"layout": layout_digest(named), "code": code_digest(named)}
    if isinstance(named, BaseModel):
        return part_named(type(named)), named.model_dump(exclude_unset=True)
    if isinstance(named, type) and issubclass(named, BaseModel):
        return part_named(named), {}
    if kind in ADAPTERS and callable(named):
        return function_named(kind, named), {}
    return named, {}


def part_named(part: type[Any]) -> Any:
    """Returns the importable name of a class, or else the class itself."""
    return _place(part) or part


def function_named(kind: str, function: Callable[..., Any]) -> Any:
    """Returns the importable name of a function, or else a part of this `kind` that calls it."""
    return _place(function) or imported(ADAPTERS[kind], kind, kind).of(function)


def _place(thing: Any) -> str:
    """Returns `module:name` if another process can import `thing` by that name; otherwise ""."""
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    if not module or not name or module == "__main__" or "." in name:
        return ""
    try:
        same = getattr(importlib.import_module(module), name, None) is thing
    except ImportError:
        return ""
    return f"{module}:{name}" if same else ""


def _refuse_twice(sections: Mapping[str, Any], argument: str, key: str) -> None:
    section, _, name = key.partition(".")
    if name in sections.get(section, {}):
        raise Refused(
            f"{argument} and {key} are both given, but set the same value; give only one",
            key=key,
        )
