"""What a part from outside defines, held against the contract of its kind.

Its hooks return what the contract says, of the shape that it says; and what it defines is called.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeGuard, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from privfed.core.deferred import torch
from privfed.core.errors import Refused
from privfed.core.registry import CONTRACTS

_LIBRARY = ("privfed", "defenses", "attacks", "accounting", "pydantic")
_SHAPES: dict[tuple[str, str], Callable[..., tuple[int, ...]]] = {
    ("optimizer", "step"): lambda part, params, **_: params.shape,
    ("objective", "losses"): lambda part, batch: batch.outputs.shape[:1],
    ("objective", "along"): lambda part, step, **_: step.w.shape,
    ("objective", "direction"): lambda part, grad, **_: grad.shape,
    ("objective", "message"): lambda part, w, **_: (len(w), part.layout(w.shape[1]).length),
    ("objective", "admitted"): lambda part, rows: rows.shape,
    ("compression", "encode"): lambda part, updates, sending, **_: (
        len(updates),
        part.length(sending.space.shapes),
    ),
    ("compression", "decode"): lambda part, sending, **_: (sending.space.shapes.length,),
    ("mechanism", "bound"): lambda part, rows, layout, **_: (len(rows), part.width(layout)),
    ("rule", "__call__"): lambda part, rows, **_: rows.shape[1:],
    ("rule", "with_histories"): lambda part, rows, **_: rows.shape[1:],
    ("rule", "terms"): lambda part, rows, **_: (len(rows), rows.shape[1] + part.extra),
    ("rule", "step"): lambda part, center, **_: center.shape,
    ("rule", "center_after"): lambda part, center, **_: center.shape,
    ("attack", "corrupt"): lambda part, view, **_: view.byzantine.shape,
}
"""The shape of the first tensor that a hook returns, by the arguments that it is given."""


def contract_of(kind: str) -> type[Any]:
    """Return the class that says what parts of `kind` declare and do."""
    module, _, attribute = CONTRACTS[kind].partition(":")
    contract: type[Any] = getattr(importlib.import_module(module), attribute)
    return contract


def declared(contract: type[Any]) -> set[str]:
    """The names that a contract annotates, defines or lists, without private ones."""
    names = {*vars(contract), *vars(contract).get("__annotations__", {})}
    listed: frozenset[str] = vars(contract).get("_declares", frozenset())
    return {name for name in names if not name.startswith(("_", "model_"))} | listed


def is_part(candidate: Any) -> TypeGuard[type[BaseModel]]:
    """Whether `candidate` is a class of parts."""
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)


def refuse_uncalled(kind: str, part: type[BaseModel], named: str, scratch: type[BaseModel]) -> None:
    """Refuse a part from outside that defines a public name which no hook reads, or nothing.

    Not one that extends `scratch` alone: its contract is a protocol, which it writes out.

    Raises:
        Refused: With the hooks that a part of this kind may override.
    """
    outside = [each for each in part.__mro__ if not _is_ours(each) and each is not object]
    if not any(_is_ours(each) and each not in scratch.__mro__ for each in part.__mro__):
        return
    known = {name for each in part.__mro__ if _is_ours(each) for name in declared(each)}
    known |= declared(contract_of(kind)) | {*part.model_fields}
    defined = {name: value for each in outside for name, value in vars(each).items()}
    public = {name for name in defined if not name.startswith(("_", "model_"))}
    decorated = part.__pydantic_decorators__
    validators = {*decorated.field_validators, *decorated.model_validators, *decorated.validators}
    read = {name for value in defined.values() for name in _names_in(inspect.unwrap(value))}
    unread = sorted(public - known - validators - read)
    hooks = ", ".join(sorted(_hooks(kind, part)))
    if unread and inspect.isfunction(defined[unread[0]]):
        raise Refused(
            f"{named}, whose method {unread[0]} is no hook, so nothing calls it; begin a helper's"
            f" name with an underscore, or override one of: {hooks}"
        )
    if unread:
        declares = sorted(declared(contract_of(kind)) - _hooks(kind, part))
        raise Refused(
            f"{named}, whose attribute {unread[0]} is no declaration, so nothing reads it; begin "
            f"its name with an underscore, or declare one of: {', '.join(declares)}"
        )
    nearest = next(each for each in part.__mro__ if _is_ours(each))
    fields = any(vars(each).get("__annotations__") for each in outside)
    if nearest is contract_of(kind) and not (public or fields or "__call__" in defined):
        raise Refused(f"{named}, which overrides nothing; override one of: {hooks}")


def _names_in(defined: Any) -> set[str]:
    """Names that the code of a function, a property or a class's method reads."""
    function = getattr(defined, "fget", getattr(defined, "__func__", defined))
    todo, names = [getattr(function, "__code__", None)], set[str]()
    for code in todo:
        if isinstance(code, types.CodeType):
            names |= {*code.co_names}
            todo += code.co_consts
    return names


def _hooks(kind: str, part: type[BaseModel]) -> set[str]:
    """The public methods that a part of this kind has of its contract."""
    bases = [contract_of(kind), *(each for each in part.__mro__ if _is_ours(each))]
    of_parts = {name for each in BaseModel.__mro__ for name in vars(each)}
    methods = {
        name
        for each in bases
        for name, value in vars(each).items()
        if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_"))
    }
    return methods - of_parts


def check_answers(kind: str, part: type[BaseModel]) -> None:
    """Has hooks of a part from outside refuse what their contract does not let them return."""
    for each in part.__mro__:
        for name, hook in [*vars(each).items()]:
            called = hook.fget if isinstance(hook, property) else hook
            if not inspect.isfunction(called) or _is_ours(called) or hasattr(called, "answers_to"):
                continue
            if promised := _promised(kind, part, name):
                checked = _checked(called, kind, promised)
                setattr(each, name, property(checked) if called is not hook else checked)


def _is_ours(made: Any) -> bool:
    """Whether a class or function is of privfed's packages, or of a library they extend."""
    return made.__module__.partition(".")[0] in _LIBRARY


def _promised(kind: str, part: type[BaseModel], name: str) -> Any:
    """The function of the contract, or of a class of privfed's, that says what a hook returns."""
    if name.startswith(("_", "model_")) and name != "__call__":
        return None
    for each in (contract_of(kind), *reversed(part.__mro__)):
        hook = vars(each).get(name)
        hook = getattr(hook, "fget", hook)
        if inspect.isfunction(hook) and _is_ours(hook) and each not in BaseModel.__mro__:
            return hook
    return None


def _checked(hook: Callable[..., Any], kind: str, promised: Any) -> Callable[..., Any]:
    """`hook`, whose answers are held against the annotation of `promised`."""

    @functools.wraps(hook)
    def answer(self: Any, *given: Any, **named: Any) -> Any:
        returned = hook(self, *given, **named)
        expected, signature = _contracted(promised)
        if not _fits(returned, expected):
            raise _misfit(self, promised, f"{_in_words(returned)}, but {_kind(expected)}")
        if shape := _SHAPES.get((kind, promised.__name__)):
            arguments = signature.bind(self, *given, **named).arguments
            part = arguments.pop("self")
            first = returned[0] if isinstance(returned, tuple | list) else returned
            tensor = getattr(first, "rows", first)
            refuse_shape(tensor, shape(part, **arguments), part, promised)
        return returned

    answer.answers_to = promised  # type: ignore[attr-defined]
    return answer


@functools.cache
def _contracted(promised: Any) -> tuple[Any, inspect.Signature]:
    """What `promised` returns, by its annotation, and the names of its arguments."""
    stated = {"return": promised.__annotations__.get("return", Any)}  # others may be unresolvable
    of, names = types.SimpleNamespace(__annotations__=stated), {"Tensor": torch.Tensor}
    hints = get_type_hints(of, promised.__globals__, names)
    return hints["return"], inspect.signature(promised)


def refuse_shape(tensor: Any, shape: tuple[int, ...], part: object, hook: Any) -> None:
    """Raises `Refused` where what `hook` of `part` returned is not of this `shape`."""
    if tuple(tensor.shape) != tuple(shape):
        raise _misfit(part, hook, f"{_in_words(tensor)}, but one of shape {tuple(shape)}")


def _misfit(part: object, promised: Any, what: str) -> Refused:
    """Says that a hook of `part` returns something else than was `promised` of it."""
    says = " ".join((inspect.getdoc(promised) or "").partition("\n\n")[0].split()).replace("`", "")
    contract = f"{promised.__module__}.{promised.__qualname__}"
    return Refused(
        f"{type(part).__qualname__}.{promised.__name__} returns {what} is expected; return what "
        f"{contract} says: {says}"
    )


def _fits(value: Any, expected: Any) -> bool:
    """Whether `value` is of the annotated type."""
    of, parts = get_origin(expected) or expected, get_args(expected)
    if of in (Union, types.UnionType):
        return any(_fits(value, each) for each in parts)
    if of is tuple and ... not in parts:
        fitting = isinstance(value, tuple | list) and len(value) == len(parts)
        return fitting and all(map(_fits, value, parts))
    if of in (Mapping, dict):
        return isinstance(value, Mapping) and all(_fits(each, parts[1]) for each in value.values())
    return _is_a(value, of)


def _is_a(value: Any, of: Any) -> bool:
    """Whether `value` is an instance of `of`, or can be used as one."""
    if of is Any or of is Self:
        return of is Any or is_part(type(value))
    if dunder := {bool: "__bool__", int: "__index__", float: "__float__"}.get(of):
        return value is not None and hasattr(value, dunder) and not getattr(value, "ndim", 0)
    if getattr(of, "_is_protocol", False):
        return declared(of) <= {*dir(value), *getattr(type(value), "model_fields", ())}
    return isinstance(value, of)


def _in_words(value: Any) -> str:
    """The type of what a hook returned, without its values."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        types_of = [type(each).__name__ for each in value[:4]] + ["…"] * (len(value) > 4)
        return f"({', '.join(types_of)})"
    return "None" if value is None else type(value).__name__


def _kind(expected: Any) -> str:
    """An annotated type, in words."""
    of, parts = get_origin(expected) or expected, get_args(expected)
    if of in (Union, types.UnionType):
        return " or ".join(map(_kind, parts))
    if of is tuple and ... not in parts:
        return f"({', '.join(map(_kind, parts))})"
    if of in (Mapping, dict):
        return "a dict of tensors" if parts[1] is torch.Tensor else "a dict"
    words = {types.NoneType: "None", torch.Tensor: "a tensor", int: "an integer", float: "a number"}
    return words.get(of, "a part" if of is Self else getattr(of, "__name__", str(of)))
