"""Checks external parts against the contract of their kind.

A part's hooks (methods that a run calls) must return values of the type and shape that the contract
states. Public names of a part that extends a class of privfed other than `Part` are checked, too.
Each must be a hook, a key of the run file, a declaration (a class attribute or property that a run
reads), or a name that the part's own code reads.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, TypeGuard, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from privfed.core.deferred import torch
from privfed.core.errors import Refused
from privfed.core.registry import CONTRACTS
from privfed.core.text import nearest

_LIBRARY = ("privfed", "defenses", "attacks", "accounting", "pydantic")
CALLED_IF = "_called_if"
_SHAPES: dict[tuple[str, str], Callable[..., tuple[Any, ...]]] = {
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
    ("rule", "mix"): lambda part, geometry, **_: (..., geometry.rows),
    ("rule", "columns"): lambda part, ordered, **_: ordered.shape[:1],
    ("rule", "weigh"): lambda part, geometry, **_: (geometry.rows,),
    ("before", "mix"): lambda part, geometry, **_: (part.left(geometry.rows), geometry.rows),
    ("attack", "corrupt"): lambda part, view, **_: view.byzantine.shape,
}
"""A function for each kind and hook: it computes the shape of the hook's result from its arguments.
If the result is a tuple or list, its first entry counts. `...` is any number of axes."""


def contract_of(kind: str) -> type[Any]:
    """Returns the contract of `kind`: a class with the declarations and hooks of its parts."""
    module, _, attribute = CONTRACTS[kind].partition(":")
    contract: type[Any] = getattr(importlib.import_module(module), attribute)
    return contract


def declared(contract: type[Any]) -> set[str]:
    """Returns the public names that a contract annotates, defines or lists in `_declares`.

    Names of the protocols that it extends are included.
    """
    protocols = [each for each in contract.__mro__ if getattr(each, "_is_protocol", False)]
    names = {
        name
        for each in {contract, *protocols} - {Protocol}
        for name in (*vars(each), *vars(each).get("__annotations__", {}))
    }
    listed: frozenset[str] = vars(contract).get("_declares", frozenset())
    return {name for name in names if not name.startswith(("_", "model_"))} | listed


def is_part(candidate: Any) -> TypeGuard[type[BaseModel]]:
    """Whether `candidate` is a class that may be a part: a subclass of pydantic's `BaseModel`."""
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)


def refuse_uncalled(kind: str, part: type[BaseModel], named: str, scratch: type[BaseModel]) -> None:
    """Refuses an external part that has a public name that no code reads, or that is empty.

    A part is empty if it extends only its contract, and has no public name, key or `__call__`. A
    part that extends `scratch` alone is accepted: it implements its protocol in full.

    Args:
      kind: the kind of part, a key of `CONTRACTS`.
      part: the class to check.
      named: the beginning of the message, which names the part.
      scratch: the base class of all parts.

    Raises:
      Refused: with the hooks or declarations that a part of this kind may override.
    """
    outside = [each for each in part.__mro__ if not _is_ours(each) and each is not object]
    if not any(_is_ours(each) and each not in scratch.__mro__ for each in part.__mro__):
        return
    defined = {name: value for each in outside for name, value in vars(each).items()}
    hooks = sorted(hooks_of(kind, part))
    unread = _unread(kind, part, defined)
    if unread and inspect.isfunction(defined[unread[0]]):
        raise Refused(
            f"{named}, whose method {unread[0]} is no hook, so nothing calls it"
            f"{_meant(unread[0], hooks)}; begin a helper's name with an underscore, or override "
            f"one of: {', '.join(hooks)}"
        )
    if unread:
        bases = (each for each in part.__mro__ if _is_ours(each) and each not in scratch.__mro__)
        names = declared(contract_of(kind)).union(*map(declared, bases))
        declares = sorted(names - hooks_of(kind, part))
        raise Refused(
            f"{named}, whose attribute {unread[0]} is no declaration, so nothing reads it"
            f"{_meant(unread[0], declares)}; begin its name with an underscore, or declare one of: "
            f"{', '.join(declares)}"
        )
    public = any(not name.startswith(("_", "model_")) for name in defined)
    nearest = next(each for each in part.__mro__ if _is_ours(each))
    fields = any(vars(each).get("__annotations__") for each in outside)
    if nearest is contract_of(kind) and not (public or fields or "__call__" in defined):
        raise Refused(f"{named}, which overrides nothing; override one of: {', '.join(hooks)}")


def _meant(name: str, known: list[str]) -> str:
    """Returns " (did you mean …?)" with the nearest of the `known` names, or ""."""
    close = nearest(name, known)
    return f" (did you mean {close}?)" if close else ""


def _unread(kind: str, part: type[BaseModel], defined: Mapping[str, Any]) -> list[str]:
    """Returns the public names in `defined` that neither privfed nor the part's own code reads."""
    known = {name for each in part.__mro__ if _is_ours(each) for name in declared(each)}
    known |= declared(contract_of(kind)) | {*part.model_fields}
    decorated = part.__pydantic_decorators__
    known |= {*decorated.field_validators, *decorated.model_validators, *decorated.validators}
    classes = [each for each in part.__mro__ if each not in BaseModel.__mro__]
    values = [value for each in classes for value in vars(each).values()]
    read = {name for value in values for name in names_read(value)}
    public = {name for name in defined if not name.startswith(("_", "model_"))}
    return sorted(public - known - read)


def names_read(defined: Any) -> set[str]:
    """Returns the names of attributes that the code of a function, property or method reads.

    Attributes of arguments other than `self` do not count: `batch.loss` does not read the part's
    `loss`.
    """
    function = getattr(defined, "fget", getattr(defined, "__func__", defined))
    todo, names = [getattr(inspect.unwrap(function), "__code__", None)], set[str]()
    for code in todo:
        if not isinstance(code, types.CodeType):
            continue
        todo += code.co_consts
        others, before = set(code.co_varnames[1 : code.co_argcount]), None
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and before not in others:
                names.add(step.argval)
            loaded = step.argval if step.opname.startswith("LOAD_FAST") else None
            before = loaded[-1] if isinstance(loaded, tuple) else loaded  # the later of two
    return names


def hooks_of(kind: str, part: type[BaseModel]) -> set[str]:
    """Returns the names of the public methods of a part's contract and of its built-in classes.

    Built-in are those classes among `part` and its bases that privfed defines. `__call__` is
    included; methods of `BaseModel` are not.
    """
    bases = [*contract_of(kind).__mro__, *(each for each in part.__mro__ if _is_ours(each))]
    of_parts = {name for each in BaseModel.__mro__ for name in vars(each)}
    methods = {
        name
        for each in bases
        for name, value in vars(each).items()
        if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_"))
    }
    return methods - of_parts


def check_answers(kind: str, part: type[BaseModel], ours: bool = False) -> None:
    """Wraps the hooks of an external part, so that a result that violates the contract is refused.

    Args:
      kind: the kind of part, a key of `CONTRACTS`.
      part: the class; hooks that it or its external bases define are replaced in place.
      ours: whether to wrap the hooks that `part` defines even if it is built in, as tests do.
    """
    for each in part.__mro__:
        for name, hook in [*vars(each).items()]:
            called = hook.fget if isinstance(hook, property) else hook
            if not inspect.isfunction(called) or hasattr(called, "answers_to"):
                continue
            if _is_ours(called) and not (ours and each is part):
                continue
            if (promised := _promised(kind, part, name)) not in (None, called):
                checked = _checked(called, kind, promised)
                setattr(each, name, property(checked) if called is not hook else checked)


def _is_ours(made: Any) -> bool:
    """Whether a class or function is defined in one of privfed's packages, or in pydantic."""
    return made.__module__.partition(".")[0] in _LIBRARY


def _promised(kind: str, part: type[BaseModel], name: str) -> Any:
    """Returns the function of privfed that the hook `name` overrides; None if `name` is no hook."""
    if name.startswith(("_", "model_")) and name != "__call__":
        return None
    for each in (*contract_of(kind).__mro__, *reversed(part.__mro__)):
        hook = vars(each).get(name)
        hook = getattr(hook, "fget", hook)
        if inspect.isfunction(hook) and _is_ours(hook) and each not in BaseModel.__mro__:
            return hook
    return None


def _checked(hook: Callable[..., Any], kind: str, promised: Any) -> Callable[..., Any]:
    """Returns `hook` with its results checked against the annotation of `promised`."""

    @functools.wraps(hook)
    def answer(self: Any, *given: Any, **named: Any) -> Any:
        returned = hook(self, *given, **named)
        expected, signature = _contracted(promised)
        if not _fits(returned, expected):
            raise _misfit(self, promised, f"{_in_words(returned)}, but {_kind(expected)}")
        if shape := _SHAPES.get((kind, promised.__name__)):
            known = {name: each for name, each in named.items() if name in signature.parameters}
            arguments = signature.bind(self, *given, **known).arguments  # others are `needs`
            part = arguments.pop("self")
            first = returned[0] if isinstance(returned, tuple | list) else returned
            tensor = getattr(first, "rows", first)
            refuse_shape(tensor, shape(part, **arguments), part, promised)
        return returned

    answer.answers_to = promised  # type: ignore[attr-defined]
    return answer


@functools.cache
def _contracted(promised: Any) -> tuple[Any, inspect.Signature]:
    stated = {"return": promised.__annotations__.get("return", Any)}  # others may be unresolvable
    of, names = types.SimpleNamespace(__annotations__=stated), {"Tensor": torch.Tensor}
    hints = get_type_hints(of, promised.__globals__, names)
    return hints["return"], inspect.signature(promised)


def refuse_shape(tensor: Any, shape: tuple[Any, ...], part: object, hook: Any) -> None:
    """Raises `Refused` if the result of `hook` does not have the expected shape.

    Args:
      tensor: the tensor that the hook returned.
      shape: the expected shape; if it begins with `...`, only the last axes are compared.
      part: the part that owns the hook, named in the message.
      hook: the contract's function; the message quotes the first paragraph of its docstring.
    """
    returned, expected = tuple(tensor.shape), tuple(shape)
    if expected[:1] == (...,):
        returned, expected = returned[1 - len(expected) :], expected[1:]
    if returned != expected:
        wanted = str(tuple(shape)).replace("Ellipsis", "...")
        raise _misfit(part, hook, f"{_in_words(tensor)}, but one of shape {wanted}")


def _misfit(part: object, promised: Any, what: str) -> Refused:
    """Returns the error for a hook of `part` whose result differs from the contract `promised`."""
    says = " ".join((inspect.getdoc(promised) or "").partition("\n\n")[0].split()).replace("`", "")
    contract = f"{promised.__module__}.{promised.__qualname__}"
    return Refused(
        f"{type(part).__qualname__}.{promised.__name__} returns {what} is expected; return what "
        f"{contract} says: {says}"
    )


def _fits(value: Any, expected: Any) -> bool:
    """Whether `value` is of the type `expected`, an annotation."""
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
    """Whether `value` is an instance of `of`, has the names that the protocol `of` declares, or
    can be converted to `of`, which is `bool`, `int` or `float`.
    """
    if of is Any or of is Self:
        return of is Any or is_part(type(value))
    if dunder := {bool: "__bool__", int: "__index__", float: "__float__"}.get(of):
        return value is not None and hasattr(value, dunder) and not getattr(value, "ndim", 0)
    if getattr(of, "_is_protocol", False):
        return declared(of) <= {*dir(value), *getattr(type(value), "model_fields", ())}
    return isinstance(value, of)


def _in_words(value: Any) -> str:
    """Returns the type of a hook's result in words; of a tuple or list, the first four types."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        types_of = [type(each).__name__ for each in value[:4]] + ["…"] * (len(value) > 4)
        return f"({', '.join(types_of)})"
    return "None" if value is None else type(value).__name__


def _kind(expected: Any) -> str:
    of, parts = get_origin(expected) or expected, get_args(expected)
    if of in (Union, types.UnionType):
        return " or ".join(map(_kind, parts))
    if of is tuple and ... not in parts:
        return f"({', '.join(map(_kind, parts))})"
    if of in (Mapping, dict):
        return "a dict of tensors" if parts[1] is torch.Tensor else "a dict"
    words = {types.NoneType: "None", torch.Tensor: "a tensor", int: "an integer", float: "a number"}
    return words.get(of, "a part" if of is Self else getattr(of, "__name__", str(of)))
