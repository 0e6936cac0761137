"""Describes mistakes in the values of a section, in the terms of a run file.

The validation library's messages name its own classes, and report each permitted type of a value
separately. Here a mistake states one key, its value, and everything that the key accepts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from privfed.core.text import nearest

_KINDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table of keys and values",
    "model_type": "a table of keys and values",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "at least {min_length} letters",
}
"""The expected value, by the library's kind of error."""
OTHER_NAMES = {
    "run.rounds": "num_rounds n_rounds total_rounds comm_round communication_rounds global_rounds",
    "run.seed": "random_state random_seed",
    "run.device": "gpu use_gpu cuda use_cuda",
    "run.workers": "n_jobs num_workers",
    "run.evaluate_every": "eval_every eval_interval frequency_of_the_test",
    "data.source": "dataset",
    "data.path": "data_dir data_path data_cache_dir",
    "data.clients": "num_clients n_clients total_clients client_num_in_total num_users "
    "num_supernodes num_partitions",
    "data.label": "label_column",
    "data.partition": "partitioner partition_method",
    "data.concentration": "dirichlet_alpha partition_alpha",
    "data.holdout_fraction": "test_size test_fraction val_split validation_split",
    "model.name": "architecture arch net network",
    "model.hidden": "hidden_size hidden_layer_sizes",
    "model.loss": "criterion loss_fn loss_function",
    "client.lr": "learning_rate client_lr client_learning_rate local_lr step_size",
    "client.epochs": "num_epochs n_epochs client_epochs num_local_epochs epochs_per_round",
    "client.steps": "num_steps local_steps max_steps",
    "client.batch_size": "batch batchsize local_batch_size train_batch_size minibatch_size",
    "client.objective": "local_solver client_optimizer",
    "server.optimizer": "strategy federated_optimizer server_optimizer",
    "server.lr": "learning_rate server_lr server_learning_rate",
    "server.momentum": "server_momentum",
    "cohort.size": "fraction_fit fraction_train min_fit_clients min_train_nodes clients_per_round "
    "num_clients_per_round client_num_per_round cohort_size",
    "cohort.dropout": "dropout_rate",
    "privacy.epsilon": "eps target_epsilon privacy_budget",
    "privacy.delta": "target_delta",
    "privacy.noise_multiplier": "sigma noise_scale noise_std",
    "privacy.clip": "max_grad_norm clipping_norm clip_norm l2_norm_clip clipping_threshold",
    "privacy.mechanism": "dp differential_privacy",
    "aggregation.rule": "aggregator aggregation_rule aggregation_method",
    "aggregation.byzantine": "num_byzantine num_malicious num_malicious_clients",
    "secure.protocol": "secagg secure_aggregation",
    "secure.threshold": "reconstruction_threshold",
    "attack.fraction": "malicious_fraction byzantine_fraction",
    "stop.patience": "early_stopping n_iter_no_change",
}
"""Names of keys in other libraries (Flower, FedML, Opacus, TFF, scikit-learn), by key."""

_MOST_SHOWN = 10


@dataclass(frozen=True)
class Mistake:
    """A mistake in the key `key` ("section.key"); `text()` describes it.

    The text is computed on demand, because finding a similar known name is slow.
    """

    key: str
    text: Callable[[], str]


@dataclass(frozen=True)
class _Problem:
    """One validation error of pydantic, at `path`.

    `head` is the beginning of `path` up to the first union, so that errors of all branches of a
    union have the same `head`.
    """

    path: tuple[str | int, ...]
    head: tuple[str | int, ...]
    kind: str
    message: str
    value: Any
    context: Mapping[str, Any]


def named_elsewhere(name: str) -> list[str]:
    """Returns the keys, "section.key", that other libraries call `name`."""
    return [key for key, others in OTHER_NAMES.items() if name in others.split()]


def listed_mistakes(wrong: Sequence[Mistake], where: str = "") -> str:
    """Returns the texts of the first ten mistakes, one per line, then the number of further ones.

    Args:
      wrong: all mistakes.
      where: prefix of every line.
    """
    texts = [where + mistake.text() for mistake in wrong[:_MOST_SHOWN]]
    if (more := len(wrong) - len(texts)) > 0:
        texts.append(f"{where}{more} more mistakes follow; correct these first")
    return "\n".join(dict.fromkeys(texts))


def mistakes(
    error: ValidationError, section: str, given: Mapping[str, Any], model: type[BaseModel]
) -> list[Mistake]:
    """Returns one mistake for each key that the validation error concerns.

    Args:
      error: pydantic's error.
      section: name of the section; "" if `given` is a whole file.
      given: the keys of the section, with their values.
      model: the class that refused the keys.
    """
    places: dict[tuple[str | int, ...], list[_Problem]] = {}
    for each in error.errors():
        problem = _problem(each, given)
        places.setdefault(problem.head, []).append(problem)
    return [_mistake(section, problems, model) for problems in places.values()]


def _problem(error: Any, given: Mapping[str, Any]) -> _Problem:
    """Returns an error of pydantic, without the names of union branches in its location."""
    path, head, value = [], None, given
    for step in error["loc"]:
        if _holds(value, step):
            path.append(step)
            value = value[step]
        elif not path or error["type"] in ("missing", "extra_forbidden"):
            path.append(step)
        elif head is None:
            head = tuple(path)
    begins = tuple(path) if head is None else head
    context = error.get("ctx") or {}
    return _Problem(tuple(path), begins, error["type"], error["msg"], error["input"], context)


def _holds(value: Any, step: str | int) -> bool:
    if isinstance(value, Mapping):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _mistake(section: str, problems: Sequence[_Problem], model: type[BaseModel]) -> Mistake:
    """Returns one mistake, made from those of the `problems` that have the longest `path`."""
    deepest = max(len(problem.path) for problem in problems)
    problems = [problem for problem in problems if len(problem.path) == deepest]
    first = problems[0]
    key = ".".join(str(step) for step in (section, *first.path) if step != "")
    return Mistake(key, partial(_text, key, problems, model))


def _text(key: str, problems: Sequence[_Problem], model: type[BaseModel]) -> str:
    first = problems[0]
    shown = f"{key} is {first.value!r}"
    if first.kind == "missing":
        return f"{key} is missing, and has no default; set it"
    if first.kind == "extra_forbidden":
        return _unknown(key, first.path, model)
    if first.kind == "value_error":
        reason = first.message.removeprefix("Value error, ")
        return f"{shown}: {reason}" if first.path else f"{key}: {reason}"
    words = list(dict.fromkeys(_expected(problem, model) for problem in problems))
    choices = re.findall("'([^']*)'", " ".join(words))
    hint = _hint(first.value, choices) if isinstance(first.value, str) else ""
    *others, last = words
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{shown}; expected {expected}{hint}"


def _unknown(key: str, path: Sequence[str | int], model: type[BaseModel]) -> str:
    """Returns a text about the unknown key at `path`, and the keys that its table accepts."""
    *outer, written = path
    known = list(_table_at(outer, model))
    instead = f"expected one of {', '.join(sorted(known))}{_hint(str(written), known)}"
    match outer:
        case [table, int(place)]:
            return f"unknown key {written!r} in [[{table}]] number {place + 1}; {instead}"
        case [_]:
            return f"unknown key {written!r} in [{key.rpartition('.')[0]}]; {instead}"
    return f"{key} is not a known key; {instead if known else 'remove it'}"


def _table_at(path: Iterable[str | int], model: type[BaseModel]) -> Iterable[str]:
    """Returns the keys that `model` accepts in the table at `path`; none without such a table."""
    for name in (step for step in path if isinstance(step, str)):
        field = model.model_fields.get(name)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not tables:
            return ()
        model = tables[0]
    return model.model_fields


def _expected(problem: _Problem, model: type[BaseModel]) -> str:
    field = model.model_fields.get(str(problem.path[0])) if problem.path else None
    if field and field.description:
        return field.description
    if problem.kind in _KINDS:
        return _KINDS[problem.kind].format(**{k: _number(v) for k, v in problem.context.items()})
    return problem.message.removeprefix("Input should be ")


def _hint(written: str, known: Iterable[str]) -> str:
    """Returns " (did you mean …?)" with the closest known value, or ""."""
    close = nearest(written, known)
    return f" (did you mean {close!r}?)" if close else ""


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
