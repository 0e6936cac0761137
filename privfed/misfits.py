"""What of a section does not fit its part, in the configuration's own words.

Where a key takes several kinds of value, pydantic reports a problem for each, under names of its
own; here they are one, which says what may stand there.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

Step = str | int
_WORDS = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
_CONTAINERS = (dict, list)
_OF_KIND = {"dict_type", "list_type", "model_type"}
"""Problems that pydantic words by Python's types."""


@dataclass(frozen=True)
class Misfit:
    """A problem at `place`, the keys that lead there (none: the section as a whole)."""

    place: tuple[Step, ...]
    value: Any
    message: str
    absent: bool = False


def misfits(
    model: type[BaseModel], given: Mapping[str, Any], error: ValidationError
) -> Iterator[Misfit]:
    """The problems of `error`, which `model` has with `given`; one for each place."""
    seen: set[tuple[Step, ...]] = set()
    for problem in error.errors():
        followed = _followed(model, dict(given), problem["loc"])
        if followed is None:
            continue
        place, accepted, alternatives = followed
        if alternatives and place in seen:
            continue
        seen.add(place)
        message = problem["msg"].removeprefix("Value error, ")
        if alternatives or problem["type"] in _OF_KIND:
            message = f"expected {words(accepted)}"
        elif place:
            message = message[:1].lower() + message[1:]
        yield Misfit(place, problem["input"], message, problem["type"] == "missing")


def words(accepted: Any) -> str:
    """What a value of this type is, as a run file's author would say it."""
    accepted = _plain(accepted)
    if get_origin(accepted) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(accepted))
    if _several(accepted):
        *some, last = map(words, get_args(accepted))
        return f"{', '.join(some)} or {last}"
    if get_origin(accepted) in _CONTAINERS:
        kind = "a table" if get_origin(accepted) is dict else "a list"
        return f"{kind}, each {words(get_args(accepted)[-1])}"
    if isinstance(accepted, type) and issubclass(accepted, BaseModel):
        return f"a table with {', '.join(accepted.model_fields)}"
    return _WORDS.get(accepted, "another kind of value")


def _followed(
    accepted: Any, value: Any, loc: tuple[Step, ...]
) -> tuple[tuple[Step, ...], Any, bool] | None:
    """Where a problem is, what is accepted there, and whether that is one of several kinds.

    None for what was tried beside the kind that the value is meant to be.
    """
    place: tuple[Step, ...] = ()
    steps = list(loc)
    while steps:
        accepted = _plain(accepted)
        if _several(accepted):
            meant = [kind for kind in map(_plain, get_args(accepted)) if _is_like(kind, value)]
            if not meant:
                return place, accepted, True
            tag, accepted = str(steps.pop(0)), meant[0]
            if not tag.startswith(get_origin(accepted).__name__):
                return None
            continue
        step = steps.pop(0)
        place, accepted = (*place, step), _inside(accepted, step)
        value = value[step] if _holds(value, step) else None
    accepted = _plain(accepted)
    return place, accepted, False


def _plain(accepted: Any) -> Any:
    """Without what is said beside a type, and without None, which no file can state."""
    while get_origin(accepted) is Annotated:
        accepted = get_args(accepted)[0]
    if get_origin(accepted) not in (Union, types.UnionType):
        return accepted
    kinds = [kind for kind in get_args(accepted) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007


def _several(accepted: Any) -> bool:
    return get_origin(accepted) in (Union, types.UnionType)


def _is_like(kind: Any, value: Any) -> bool:
    """Whether `value` is meant as a table, or a list, that `kind` is."""
    return get_origin(kind) in _CONTAINERS and isinstance(value, get_origin(kind))


def _inside(accepted: Any, step: Step) -> Any:
    """What is accepted under `step`."""
    if isinstance(accepted, type) and issubclass(accepted, BaseModel):
        field = accepted.model_fields.get(str(step))
        return field.annotation if field else Any
    return get_args(accepted)[-1] if get_origin(accepted) in _CONTAINERS else Any


def _holds(value: Any, step: Step) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, dict) and step in value
