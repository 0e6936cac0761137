"""Identifies the population of a run, and the data that a model trained on it may reveal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from privfed.config.config import Config
from privfed.config.sections import SECTIONS
from privfed.core.parts import catalogue_name
from privfed.core.registry import BUILT_IN

Population = Mapping[str, Any]


def population_identity(config: Config) -> dict[str, Any]:
    """Returns the `name`, `unit` and `sources` of the population that a run's guarantee covers.

    The unit of real clients is the source with its client column, whatever the file's path; that of
    simulated clients is a hash of [data] and the seed. The name is `data.population`, or else that
    hash, which does not cover the keys about sites. A model trained on any of the same `sources`
    may reveal data of the same clients, for any partition of the examples.
    """
    facts = _facts(
        config, {kind: catalogue_name(kind, type(config.parts[kind])) for kind in _kinds()}
    )
    sources = config.source.sources(config.run.seed)
    unit = sources[0] if config.real_clients else facts
    return {"name": config.data.population or facts, "unit": unit, "sources": list(sources)}


def same_unit(config: Config, theirs: Population) -> bool:
    """Whether `theirs`, from a ledger of any version, has the same unit of privacy as this run."""
    spelled = {"unit": f"{config.names['source']}: {config.values()['data'].get('client', '')}"}
    ours = [population_identity(config), {"unit": _facts(config, config.names)}]
    ours += [spelled] if config.real_clients else []
    return normal(theirs)["unit"] in {normal(facts)["unit"] for facts in ours}


def same_name(config: Config, theirs: Population) -> bool:
    """Whether `theirs`, from a ledger of any version, has the name of this run's population."""
    named = {population_identity(config)["name"]}
    named |= set() if config.data.population else {_facts(config, config.names)}
    return theirs.get("name") in named


def perhaps_same(config: Config, theirs: Population) -> bool:
    """Whether a model trained on the population `theirs` may reveal data of this run's clients.

    True also for an older ledger that does not state the sources of simulated clients.
    """
    sources = theirs.get("sources")
    known = bool(sources) or _is_file(theirs.get("unit"))
    others = {*(sources or ()), normal(theirs)["unit"]}
    pairs = product(population_identity(config)["sources"], others)
    shared = any(fnmatchcase(a, b) or fnmatchcase(b, a) for a, b in pairs)
    return not known or shared or same_unit(config, theirs) or same_name(config, theirs)


def normal(theirs: Population) -> dict[str, Any]:
    """Returns `name` and `unit` of a population, in the form in which ledgers are compared.

    If `unit` begins with a source spelled `module:Name`, the source's name in the registry replaces
    it; `name` is unchanged.
    """
    unit = str(theirs.get("unit"))
    for name, target in BUILT_IN["source"].items():
        if unit.startswith(f"{target}: "):
            unit = name + unit.removeprefix(target)
    return {"name": theirs.get("name"), "unit": unit}


def _is_file(unit: object) -> bool:
    """Whether `unit` has the form "source: client column", rather than that of a hash."""
    return ": " in str(unit)


def _kinds() -> list[str]:
    return [kind for kind, _ in SECTIONS["data"].parts.values()]


def _facts(config: Config, names: Mapping[str, str]) -> str:
    """Returns a hash of the seed, the keys of [data] that define clients, and parts of [data].

    `names` has the names of these parts, by kind. Keys about sites are left out.
    """
    parts = {key: names[kind] for key, (kind, _) in SECTIONS["data"].parts.items()}
    data = {**config.values()["data"], **parts}
    for model in (config.data, *(config.parts[kind] for kind in _kinds())):
        data = {key: value for key, value in data.items() if key not in model.storage_keys}
    text = json.dumps({"data": data, "seed": config.run.seed}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
