"""The run that releases statistics, derived from a run file: one round of counts over all clients.

Its population, adjacency relation, mechanism and secure sum are those of the run file, so that its
training and the release compose. Its clipping norm, noise, model and cohort (all clients) are not
those of the run file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pydantic import ValidationError

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from privfed.analytics.count_model import epsilon_of_share
from privfed.config.assembly import assembled, named
from privfed.config.attack_keys import AttackKeys, expected_byzantine
from privfed.config.config import Config, Raw
from privfed.config.mistakes import listed_mistakes, mistakes
from privfed.config.sections import Aggregation
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.privacy.noise_on_model import InBands
from privfed.sampling.cohort import InGroups

_OF_TABLE = {
    *("path", "client", "site", "test_path"),
    *("delimiter", "decimal", "encoding", "missing_words"),
}
"""Keys of [data] that locate a table and describe its format."""
_ESCAPED, _PATTERN = re.compile(r"\[([*?[])\]"), re.compile(r"[*?[]")


def source_of_questions(data: Mapping[str, Any], others: Iterable[str]) -> dict[str, Any]:
    """Returns the columns to describe, as keys of a `described_table`, from a run file's [data].

    Args:
      data: the section [data] of the run file.
      others: names of further columns. Those that [data] declares are described as declared;
        nothing is assumed about the rest.

    Raises:
      Refused: if a declaration has the wrong form, or names columns by a pattern.
    """
    for name in by_column(data, "features"):
        _refuse_pattern(name)
    values, ranges = dict(by_column(data, "categories")), declared_ranges(data)
    dates = dict(by_column(data, "dates"))
    label = data.get("label")
    if isinstance(label, str):
        if data.get("labels"):
            values[label] = data["labels"]
        elif data.get("classes"):
            values[label] = [*range(_class_count(data["classes"]))]
    declared = {*values, *ranges, *dates}
    return {
        "columns": [name for name in dict.fromkeys(others) if name not in declared],
        "ranges": ranges,
        "dates": dates,
        "values": values,
    }


def keys_of_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys and values of `data` that locate the table and describe its format."""
    return {key: data[key] for key in _OF_TABLE if key in data}


def by_column(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns the section [data.<key>], which maps names of columns to declarations; empty if
    absent.

    Raises:
      Refused: if it is not a section.
    """
    stated = data.get(key, {})
    if not isinstance(stated, Mapping):
        raise Refused(
            f"data.{key} is {stated!r}; expected a section [data.{key}]", key=f"data.{key}"
        )
    return stated


def declared_ranges(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the declared range [low, high] of each column of numbers, by its name.

    These are the columns that [data.features] names, and the label if `label_bounds` is set.
    """
    features, label = by_column(data, "features"), data.get("label")
    ranges = {_ESCAPED.sub(r"\1", name): each for name, each in features.items()}
    if isinstance(label, str) and data.get("label_bounds"):
        ranges[label] = data["label_bounds"]
    return ranges


def declared_values(
    data: Mapping[str, Any], column: str, option: str, alternative: str = ""
) -> Any:
    """Returns the values that [data.categories] declares for a column.

    Args:
      data: the section [data] of a run file.
      column: the name of the column.
      option: the command's option whose value is `column`, for the message.
      alternative: text appended to the message, if there is another remedy.

    Raises:
      Refused: if no values are declared for the column.
    """
    declared = by_column(data, "categories")
    if column not in declared:
        raise Refused(
            f"{option} is {column!r}, but [data.categories] does not declare its values, which "
            f"have to be public; declare {column} = [...]{alternative}",
            key="data.categories",
        )
    return declared[column]


def _class_count(stated: object) -> int:
    """Returns the declared number of classes. Raises `Refused` unless it is an integer of at least
    2.
    """
    if not isinstance(stated, int) or isinstance(stated, bool) or stated < 2:
        raise Refused(
            f"data.classes is {stated!r}; expected the number of classes, an integer above 1, for "
            "labels that are numbers from 0 (data.labels lists classes by name)",
            key="data.classes",
        )
    return stated


def _refuse_pattern(name: str) -> None:
    """Raises `Refused` if a key of [data.features] is a pattern of names instead of a name."""
    if _PATTERN.search(_ESCAPED.sub("", name)):
        raise Refused(
            f"data.features: {name!r} is a pattern, but a description requests columns by "
            "name because their number has to be public; name each column, or leave it out",
            key="data.features",
        )


_OF_TRAINING = {
    *("epsilon", "noise_multiplier", "prior", "disjoint"),
    *("clip", "adaptive_clip", "clip_quantile", "clip_rate", "count_noise"),
}
"""Keys of [privacy] that are not copied, as they concern training; the release has clipping norm 1
and its own budget."""
_OF_ROUNDS = {
    *("rounds", "evaluate_every", "checkpoint_every", "precision", "trainer", "chunk"),
    *("simulation_metrics", "client_measures", "watch", "heads", "workers"),
}
"""Keys of [run] that are not copied, as they concern several rounds, trained models, or processes.
"""
_OF_COHORTS = {"capacity", "minimum", "admitted"}
"""Keys of [secure] that concern the size of a training cohort."""
_OF_POPULATION = (
    *("population", "clients", "holdout", "holdout_fraction", "setting", "partition"),
    *("sites", "sites_per_client", "site_partition"),
)
"""Keys of [data] that define the population."""
_SAMPLERS = {ADD_REMOVE: "poisson", REPLACE_ONE: "fixed_size", ZERO_OUT: "full"}
"""The sampler whose full participation has the event of each adjacency relation."""


class HasBudget(Protocol):
    """The budget of a release."""

    @property
    def epsilon(self) -> float | None:
        """Epsilon of the release; None: its fraction of the run's budget is `budget.statistics`."""

    @property
    def delta(self) -> float | None:
        """Delta of the release; None: the delta of the run file."""


def counting_run(raw: Raw, keys: Mapping[str, Any], asking: HasBudget) -> Config:
    """Returns the configuration of the run that releases sums over the clients of a table.

    Args:
      raw: the run file of the population.
      keys: the name of the `source`, a registered `CountedTable`, and the values of its fields;
        without a value for `earlier`, it is privacy.prior of the run file.
      asking: the budget of the release.

    Raises:
      Refused: if the run file does not name a table of real clients and a private mechanism, if
        `keys` have wrong values, or if no noise meets the budget.
    """
    data = raw.get("data", {})
    _refuse_others(raw, data)
    named_keys = {key: keys[key] for key in keys if key != "source"}
    source = {"earlier": raw.get("privacy", {}).get("prior", []), **named_keys}
    table = _validated(find("source", keys["source"], "data.source"), "data", source)
    described = {
        "run": {**_without(raw.get("run", {}), _OF_ROUNDS), "evaluate_every": 1, **table.of_run},
        "data": {
            **{key: data[key] for key in _OF_POPULATION if key in data},
            **source,
            "source": keys["source"],
        },
        "model": {"loss": "added", **table.of_model},
        "client": {"lr": 1.0, "epochs": 1, "batch_size": 1},
        "server": table.of_server,
        "cohort": _everybody(raw, data["clients"]),
        "secure": _secure(raw, data),
    }
    delta = {} if asking.delta is None else {"delta": asking.delta}
    privacy = {**_privacy(raw, data["clients"]), **delta, "clip": 1.0}

    def spending(epsilon: float) -> Config:
        return assembled({**described, "privacy": {**privacy, "epsilon": epsilon}})

    epsilon = asking.epsilon
    return spending(epsilon_of_share(raw, spending(1.0)) if epsilon is None else epsilon)


def _refuse_others(raw: Raw, data: Mapping[str, Any]) -> None:
    """Raises `Refused` if the run file's statistics would not be a noised release over real
    clients.

    That is the case if `data.source` is no file with named columns; if `data.client`,
    `data.population` or `data.clients` is missing; if the partition assigns rows to simulated
    clients, or examples are held out; if the mechanism adds no noise; or if Byzantine clients are
    expected to add distributed noise.
    """
    source = named(raw, "source")
    if not {"path", "client", "delimiter"} <= source.model_fields.keys():
        given = hasattr(source, "kept_by_user")
        why = "was passed in Python: write it to a file" if given else "has no columns by name"
        raise Refused(
            f"data.source is {data.get('source', 'digits')!r}, which {why}; statistics are those "
            'of the columns of a table (data.source = "table")',
            key="data.source",
        )
    if not data.get("client"):
        raise Refused(
            "data.client is missing: statistics are released over clients, but no column names "
            "each row's client; name the column of clients",
            key="data.client",
        )
    if not data.get("population"):
        raise Refused(
            "data.population is missing: name this population, so that training counts the "
            "budget spent on its description (privacy.prior)",
            key="data.population",
        )
    if not data.get("clients"):
        raise Refused(
            "data.clients is missing: declare the approximate number of clients, a public constant",
            key="data.clients",
        )
    if named(raw, "partition").assigns or data.get("holdout") == "examples":
        key = "data.holdout" if data.get("holdout") == "examples" else "data.partition"
        raise Refused(
            f"{key} makes a simulation of real clients' rows; leave it out: a description covers "
            "the clients that the table names",
            key=key,
        )
    if not named(raw, "mechanism").private:
        raise Refused(
            'privacy.mechanism is "none"; a description is released with noise: name a mechanism',
            key="privacy.mechanism",
        )
    if raw.get("aggregation", {}).get("byzantine") and named(raw, "mechanism").trust == "sum":
        raise Refused(
            "aggregation.byzantine expects Byzantine clients, who would add none of the "
            "distributed noise, but a sum of statistics tolerates none of them; describe with "
            "noise that a server adds, or that each client adds for itself",
            key="aggregation.byzantine",
        )


def _validated(model: type[Any], section: str, keys: Mapping[str, Any]) -> Any:
    """Returns an instance of the part `model` with the values `keys` of the run file's `section`.

    Raises `Refused`, which lists all mistakes.
    """
    try:
        return model.model_validate(keys)
    except ValidationError as error:
        wrong = mistakes(error, section, keys, model)
        raise Refused(listed_mistakes(wrong)) from None


def _everybody(raw: Raw, clients: int) -> dict[str, Any]:
    """Returns [cohort] with full participation of all `clients`, under the adjacency relation of
    the run file's sampler and with its dropout.
    """
    cohort = raw.get("cohort", {})
    sampler = named(raw, "sampler")
    keys = {key: cohort[key] for key in cohort if key in sampler.model_fields}
    drawn = _validated(sampler, "cohort", keys).of(clients)
    if isinstance(drawn, InGroups) and isinstance(named(raw, "mechanism")(), InBands):
        drawn = drawn.in_groups(drawn.possible_groups()[-1])  # in any number: groups are public
    relation = drawn.witness(1, clients).relation
    everybody = _SAMPLERS[relation]
    derived = find("sampler", everybody, "cohort.sampler").derives_size
    dropout = {key: cohort[key] for key in cohort if key == "dropout"}
    return {"sampler": everybody, "size": 0 if derived else clients, **dropout}


def _privacy(raw: Raw, clients: int) -> dict[str, Any]:
    """Returns [privacy] without `_OF_TRAINING`; a mechanism with noise correlated over rounds is
    left out, and Byzantine clients are colluders if clients share noise.
    """
    keys = _without(raw.get("privacy", {}), _OF_TRAINING)
    mechanism = named(raw, "mechanism")
    if mechanism.joint:
        return {**keys, "colluders": _colluding(raw, clients)}
    if not mechanism.remembers:
        return keys
    # Its noise is correlated over rounds; here there is only one round.
    return _without(keys, {*mechanism.model_fields, "mechanism"})


def _colluding(raw: Raw, clients: int) -> int:
    """Returns the number of clients whose noise shares are not counted: colluders plus expected
    Byzantine clients.

    A description has no rule against Byzantine clients; its guarantee treats all of them as
    colluders.
    """
    aggregation, attack, privacy = (
        _validated(model, name, {key: raw[name][key]} if key in raw.get(name, {}) else {})
        for name, model, key in (
            ("aggregation", Aggregation, "byzantine"),
            ("attack", AttackKeys, "fraction"),
            ("privacy", named(raw, "mechanism"), "colluders"),
        )
    )
    return int(privacy.colluders) + expected_byzantine(
        aggregation.byzantine, attack.fraction * clients
    )


def _secure(raw: Raw, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns [secure] of the run file without `_OF_COHORTS`.

    `minimum` (of surviving sites) is kept if sites are the parties of the secure sum.
    """
    by_sites = bool(data.get("sites")) and raw.get("secure", {}).get("parties") != "clients"
    return _without(raw.get("secure", {}), _OF_COHORTS - ({"minimum"} if by_sites else set()))


def _without(section: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in keys}
