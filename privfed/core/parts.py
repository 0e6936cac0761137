"""The base class of a run's parts, and the search for parts by name.

A part is a frozen, strict configuration that also has the code of the method. A key of a section
names the part (`[server] optimizer = "fedavgm"`), and the part's fields are further keys of that
section. To add a part, write one file and add one line in `privfed.core.registry`. An external part
is named as `module:name`, or by an entry point in the group `privfed.<kind>`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    TypeVar,
)

from pydantic import AfterValidator, BaseModel, ConfigDict

from privfed.core.answers import (
    CALLED_IF,
    check_answers,
    contract_of,
    declared,
    is_part,
    refuse_uncalled,
)
from privfed.core.errors import Refused
from privfed.core.registry import ADAPTERS, BUILT_IN, CONTRACTS, GIVEN, OTHER_PARTS, RETURNED
from privfed.core.text import nearest
from privfed.core.user_code import in_user_code

P = TypeVar("P", bound=BaseModel)


def or_auto(schema: dict[str, Any]) -> None:
    """Changes the JSON schema of a key, in place, so that the key also accepts "auto"."""
    bounds = ("type", "minimum", "maximum")
    schema["anyOf"] = [
        {key: schema.pop(key) for key in bounds if key in schema},
        {"const": "auto"},
    ]


class Part(BaseModel):
    """Base class of parts, and of sections of a run file: a frozen, strict configuration.

    Unknown keys and values of a wrong type are errors.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    storage_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that state where clients' rows are stored, and nothing about the identity of the
    clients."""

    @classmethod
    def __pydantic_init_subclass__(cls, **keys: Any) -> None:
        """Lets a subclass replace a property of its base by a value, such as `plain = True`."""
        cls.__class_vars__ |= {name for name, of in vars(cls).items() if isinstance(of, property)}


def part_with_objects(base: type[P], like: Any, **facts: Any) -> type[P]:
    """Returns a subclass of the part `base` with class attributes that are no keys of a run file.

    Args:
      base: the part to extend.
      like: the class or function that gives the subclass its name and module.
      facts: class attributes of the subclass.
    """
    name = str(getattr(like, "__qualname__", like))
    place = {"__module__": like.__module__, "__qualname__": name, "__annotations__": {}}
    return type(base.__name__, (base,), {**facts, **place})


def find(kind: str, name: str, key: str) -> type[Any]:
    """Returns the class of a part by name.

    Args:
      kind: the kind of part, a key of `BUILT_IN`.
      name: a name in `BUILT_IN` or `GIVEN`, an entry point, or `module:name`.
      key: the configuration key that names the part, for messages.

    Raises:
      Refused: if there is no such part, or it violates the contract of its kind.
    """
    target = BUILT_IN[kind].get(name) or GIVEN.get(kind, {}).get(name)
    if target is None:  # looking for entry points takes milliseconds
        group = metadata.entry_points(group=f"privfed.{kind}")
        outside = {entry.name: entry.value for entry in group}
        target = outside.get(name) or (name if ":" in name else None)
        if target is None:
            plain = re.sub("[^a-z0-9]", "", name.casefold())
            others = OTHER_PARTS.get(kind, {}).items()
            meant = [part for part, names in others if plain in names.split()]
            known = expected(name, [*BUILT_IN[kind], *outside], *meant)
            raise Refused(f"{key} is {name!r}; {known}, or your own as module:Name", key=key)
    part = imported(target, name, key)
    if kind in ADAPTERS and callable(part) and not is_part(part):
        part = imported(ADAPTERS[kind], name, key).of(part)
    if not is_part(part):
        function = f", or a function that returns {RETURNED[kind]}" if kind in ADAPTERS else ""
        raise Refused(
            f"{key} is {name!r}, which is no part; expected a subclass of privfed's Part{function}",
            key=key,
        )
    if name not in BUILT_IN[kind]:
        refuse_silent(kind, part, f"{key} is {name!r}")
    return part


def passed(kind: str, part: type[Any], key: str) -> tuple[str, type[Any]]:
    """Returns the name (`catalogue_name`) and the class of a part that was passed as a class.

    Args:
      kind: the kind of part, a key of `BUILT_IN`.
      part: the class.
      key: the configuration key that it was passed for.

    Raises:
      Refused: if the class is not a part, or violates the contract of its kind.
    """
    name = catalogue_name(kind, part)
    if not is_part(part):
        raise Refused(
            f"{key} is {name!r}, which is no part; expected a subclass of privfed's Part", key=key
        )
    if ":" in name:
        refuse_silent(kind, part, f"{key} is {name!r}")
    return name, part


def refuse_silent(kind: str, part: type[BaseModel], named: str) -> None:
    """Raises `Refused` if a part violates the contract of its kind; otherwise wraps its hooks.

    The wrapped hooks check their results (`check_answers`). External parts are checked at every
    use, built-in parts only in tests.

    Args:
      kind: the kind of part.
      part: the class to check.
      named: the beginning of the message, which names the part.
    """
    if kind not in CONTRACTS:
        return
    contract, base = contract_of(kind), CONTRACTS[kind].replace(":", ".")
    if issubclass(contract, BaseModel) and not issubclass(part, contract):
        raise Refused(f"{named}, which is no {kind}; expected a subclass of {base}")
    stated = {*dir(part), *part.model_fields} - part.__abstractmethods__
    missing = sorted((declared(contract) | part.__abstractmethods__) - stated)
    if missing:
        raise Refused(
            f"{named}, which does not declare {', '.join(missing)}; expected all attributes that "
            f"{base} declares: add these, or extend a built-in part"
        )
    _refuse_misdeclared(kind, part, named)
    refuse_uncalled(kind, part, named, Part)
    check_answers(kind, part)


_PLAIN: Mapping[str, type] = {f"ClassVar[{of.__name__}]": of for of in (bool, int, str)}
"""The types that values of declarations are checked for, by annotation."""


def _refuse_misdeclared(kind: str, part: type[BaseModel], named: str) -> None:
    """Refuses declarations of a wrong type or written as keys, and overrides that are never called.

    The mapping `_called_if` of a class names a declaration for some hooks. If the declaration's
    value is false, the hook is not called, so a part must not override it.

    Args:
      kind: the kind of part, a key of `CONTRACTS`.
      part: the class to check.
      named: the beginning of the message, which names the part.

    Raises:
      Refused: with the declaration to write.
    """
    contract = contract_of(kind)
    constants = {
        name: str(of)
        for each in reversed(contract.__mro__)
        for name, of in vars(each).get("__annotations__", {}).items()
        if "ClassVar" in str(of)
    }
    for name in sorted(part.model_fields.keys() & (part.__class_vars__ | constants.keys())):
        of = getattr(part.model_fields[name].annotation, "__name__", "...")
        raise Refused(
            f"{named}, whose {name} is a key of the run file, but every {kind} declares {name} "
            f"for the class; write {name}: ClassVar[{of}] = ..."
        )
    returns = {
        name: f"ClassVar[{getter.__annotations__.get('return')}]"
        for name in dir(contract)
        if (getter := getattr(getattr(contract, name), "fget", None))
    }
    for name, of in {**constants, **returns}.items():
        plain, value = _PLAIN.get(of), getattr(part, name)
        if plain and not callable(value) and not isinstance(value, property | plain):
            raise Refused(
                f"{named}, whose {name} is {value!r}, but every {kind} declares it as {of}; write "
                f"{name}: {of} = ..., with a value of that type"
            )
    listed = [
        (each, *pair) for each in part.__mro__ for pair in vars(each).get(CALLED_IF, {}).items()
    ]
    for base, hook, switch in listed:
        if not getattr(part, switch) and getattr(part, hook) is not getattr(base, hook):
            raise Refused(
                f"{named}, whose method {hook} is never called, since {switch} is "
                f"{getattr(part, switch)!r}; set {switch} to another value, or remove {hook}"
            )


def built_in_names(kind: str, holds: Callable[[Any], object]) -> str:
    """Returns the built-in parts of `kind` that satisfy `holds`, as a text: '"a", "b" or "c"'.

    Args:
      kind: the kind of part, a key of `BUILT_IN`.
      holds: predicate on a part whose keys have their default values.
    """
    parts = {name: find(kind, name, kind).model_construct() for name in BUILT_IN[kind]}
    names = [f'"{name}"' for name, part in parts.items() if holds(part)]
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def catalogue_name(kind: str, part: type[Any]) -> str:
    """Returns the name of the class `part` in the registry, or `module:name` if it has none."""
    place = f"{part.__module__}:{part.__qualname__}"
    known = {**BUILT_IN[kind], **GIVEN.get(kind, {})}
    return next((name for name, target in known.items() if target == place), place)


def imported(target: str, name: str, key: str) -> Any:
    """Returns the imported object `module:attribute`; the module may be in the working directory.

    Args:
      target: `module:attribute`.
      name: the part's name as the user wrote it.
      key: the configuration key that names the part, for messages.

    Raises:
      Refused: if the import fails.
    """
    module, _, attribute = target.partition(":")
    if ":" in name and str(Path.cwd()) not in sys.path:  # a user's own module
        sys.path.append(str(Path.cwd()))
    try:
        return getattr(sys.modules.get(module) or importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        reason = " ".join(str(error).split())
        if module == "__main__" or "<" in attribute:
            reason += " (it was passed in Python: pass it again, privfed.load(path, …))"
        raise Refused(
            f"{key} is {name!r}, which cannot be imported from {Path.cwd()}: "
            f"{type(error).__name__}: {reason}{in_user_code(error)}",
            key=key,
        ) from error


def expected(name: str, known: list[str], *meant: str) -> str:
    """Returns "expected …" with the accepted names and a hint, "did you mean …?".

    Args:
      name: the name that was written.
      known: the accepted names.
      meant: the accepted names that the hint suggests; by default the one closest to `name`.
    """
    likely = meant or [close for close in [nearest(name, known)] if close]
    hint = f" (did you mean {' or '.join(map(repr, likely))}?)" if likely else ""
    return f"expected {'one of ' if len(known) > 1 else ''}{', '.join(sorted(known))}{hint}"


def only(value: Any, instead: str) -> Any:
    """Returns a validator that accepts only `value`, for a key with no other value available yet.

    Args:
      value: the accepted value.
      instead: the advice that ends the message.
    """

    def check(given: Any) -> Any:
        if given != value:
            raise ValueError(f"only {value!r} is available in this version; {instead}")
        return given

    return AfterValidator(check)
