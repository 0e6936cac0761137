"""Lists all parts, builds the JSON schema of run files, and writes templates of new parts."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
import keyword
import re
import textwrap
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from privfed.config.sections import FORMAT, SECTIONS
from privfed.core.answers import contract_of, declared, hooks_of
from privfed.core.errors import Refused
from privfed.core.parts import expected, find
from privfed.core.registry import BUILT_IN, CONTRACTS, LISTS


def meanings(part: type[BaseModel]) -> dict[str, str]:
    """Returns key -> docstring of its declaration in `part` or a base, if it has one."""
    texts: dict[str, str] = {}
    for base in reversed(part.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            texts |= _documented(base.__module__, base.__qualname__)
    return {key: texts[key] for key in part.model_fields if key in texts}


@functools.cache
def source_of(module: str) -> ast.Module:
    """Returns the syntax tree of `module` without importing it.

    Raises `ModuleNotFoundError` if it has no source.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{module} has no source to read")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def class_of(module: str, name: str) -> ast.ClassDef | None:
    """Returns the syntax tree of the class `name` at the top level of `module`; None if absent.

    Raises `ModuleNotFoundError` if the module has no source.
    """
    classes = (node for node in source_of(module).body if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.name == name), None)


def _documented(module: str, name: str) -> dict[str, str]:
    """Returns the documentation of keys that the class itself defines; {} without a source."""
    try:
        node = class_of(module, name)
    except (ImportError, OSError, SyntaxError, ValueError):
        return {}
    pairs = itertools.pairwise(node.body if node else [])
    texts = {_key(statement): _text(below) for statement, below in pairs}
    return {key: text for key, text in texts.items() if key and text}


def _key(node: ast.stmt) -> str:
    """Returns the key that the statement `node` declares; "" if it declares none."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return ""


def _text(node: ast.stmt) -> str:
    """Returns the text of `node` as one line if it is a docstring; "" otherwise."""
    value = node.value if isinstance(node, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return " ".join(text.split()) if isinstance(text, str) else ""


_Schema = dict[str, Any]
_MANY = 1000


def catalog() -> dict[str, dict[str, str]]:
    """Returns kind -> name -> first sentence of the docstring, for all parts.

    Parts are built-in or entry points of installed packages.
    """
    installed = metadata.entry_points()
    described: dict[str, dict[str, str]] = {}
    for kind, known in BUILT_IN.items():
        described[kind] = {name: _described(kind, name) for name in known}
        for entry in installed.select(group=f"privfed.{kind}"):
            described[kind][entry.name] = _described(kind, entry.name)
    return described


def _described(kind: str, name: str) -> str:
    """Returns the first sentence about a part; for objectives, also the lengths of messages.

    These are the messages that a client sends and receives, and what it keeps, in units of d, the
    number of parameters. They are left out for an objective that has a key without a default.
    Built-in parts other than objectives are not imported, since importing may be slow.
    """
    target = BUILT_IN[kind].get(name)
    if target and kind != "objective":
        return _line(_documentation(target))
    part = find(kind, name, kind)
    line = _line(inspect.getdoc(part) or "")
    if kind != "objective" or any(key.is_required() for key in part.model_fields.values()):
        return line
    objective: Any = part()
    up = objective.exchanges * objective.layout(_MANY).length / _MANY
    down = objective.exchanges - 1 + objective.broadcasts
    keeps = f", keeps {_vectors(objective.keeps)}" if objective.keeps else ""
    return f"{line} (sends {_vectors(up)}, is sent {_vectors(down)}{keeps})"


def _vectors(count: float) -> str:
    """Formats a message's length divided by d, rounded to an integer, such as "2 d"."""
    return "d" if round(count) == 1 else f"{count:.0f} d"


def key_of(kind: str) -> str:
    """Returns the key of a run file that names parts of `kind`, such as "server.optimizer".

    Raises:
      KeyError: for an unknown kind.
    """
    if kind in LISTS:
        return LISTS[kind]
    for section, described in SECTIONS.items():
        for key, (named, _) in described.parts.items():
            if named == kind:
                return f"{section}.{key}"
    raise KeyError(kind)


def _documentation(target: str) -> str:
    """Returns the docstring of a class of privfed, "module:Name", read from its source."""
    described = class_of(*target.split(":"))
    return (described and ast.get_docstring(described)) or ""


def _line(documentation: str) -> str:
    first = documentation.split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<!et al)\. ", first)[0].rstrip(".")


def schema() -> _Schema:
    """Returns a JSON schema (draft 2020-12) of run files; a section's parts determine its keys."""
    definitions: _Schema = {}
    sections = {name: _section(name, definitions) for name in SECTIONS}
    sections["client"]["properties"]["privacy"] = sections.pop("client.privacy")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "privfed run file",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            **sections,
            "resolved": {"type": "object", "description": "written by privfed into config.toml"},
        },
        "additionalProperties": False,
        "$defs": definitions,
    }


def _section(name: str, definitions: _Schema) -> _Schema:
    """Returns the schema of a section: its own keys, the keys that name parts, and parts' keys.

    Unknown keys are allowed if the section names an external part, "module:Name", which has keys of
    its own.
    """
    section = SECTIONS[name]
    properties = _properties(section.keys, definitions)
    rules: list[_Schema] = []
    for key, (kind, default) in section.parts.items():
        known = sorted(BUILT_IN[kind])
        names = known if default else ["", *known]
        for part in known:
            fields = _properties(find(kind, part, f"{name}.{key}"), definitions)
            chosen: _Schema = {"properties": {key: {"const": part}}}
            if part != default:
                chosen["required"] = [key]
            rules.append({"if": chosen, "then": {"properties": fields}})
            for field in fields:
                properties.setdefault(field, {})  # for completion; the rule has its form
        properties[key] = {
            "type": "string",
            "default": default,
            "description": f"{_line(_documentation(CONTRACTS[kind]))}.",
            "anyOf": [{"enum": names}, {"pattern": ":"}],
        }
    keys = sorted(properties) + (["privacy"] if name == "client" else [])
    closed: _Schema = {"propertyNames": {"enum": keys}}
    foreign: list[_Schema] = [
        {"properties": {key: {"pattern": ":"}}, "required": [key]} for key in section.parts
    ]
    rules.append({"if": {"anyOf": foreign}, "else": closed} if foreign else closed)
    return {"type": "object", "properties": properties, "allOf": rules}


def _properties(model: type[BaseModel], definitions: _Schema) -> _Schema:
    described = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(described.get("$defs", {}))
    properties: Mapping[str, Any] = described.get("properties", {})
    texts = {key: {"description": text} for key, text in meanings(model).items()}
    return {key: {**value, **texts.get(key, {})} for key, value in properties.items()}


def written_part(kind: str, name: str, like: str = "") -> tuple[str, str]:
    """Returns the source of a module with a new part, and of a module with its test.

    The part extends a built-in one. It overrides those hooks (methods of the contract) that the
    built-in part, or at least half of the built-in parts with the same base class, define; each
    override calls the built-in hook. Declarations (class attributes) are listed as comments.

    Args:
      kind: the kind of part, a key of `BUILT_IN`.
      name: the name of the new module; the class has the same name in camel case.
      like: the built-in part to extend; empty for the default of the kind.

    Raises:
      Refused: for an unknown kind or part, or a name that no module can have.
    """
    if kind not in BUILT_IN:
        raise Refused(f"the kind is {kind!r}; {expected(kind, [*BUILT_IN])}")
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise Refused(
            f"the name is {name!r}, but that is no name of a module; use lower-case letters, "
            "digits and _, a letter first, and no keyword of Python"
        )
    if importlib.util.find_spec(name):
        raise Refused(
            f"the name is {name!r}, but a module of this name is installed; choose another"
        )
    base = find(kind, like or _usual(kind), "--like")
    made, key = "".join(word.capitalize() for word in name.split("_")), key_of(kind)
    value = f'["{name}:{made}"]' if kind in LISTS else f'"{name}:{made}"'
    section, _, short = key.rpartition(".")
    module = _MODULE.format(
        place=base.__module__,
        base=base.__name__,
        made=made,
        named=f"`[{section}] {short} = {value}`",
        kind=kind,
        contract=CONTRACTS[kind].replace(":", "."),
        declarations=_declarations(kind, base),
        hooks="\n\n".join(_overriding(kind, base, hook) for hook in _overridden(kind, base)),
    )
    stated = ", ".join(f"{key}={each!r}" for key, each in example_keys(base).items())
    return module, _TEST.format(name=name, made=made, kind=kind, keys=stated)


def _usual(kind: str) -> str:
    """Returns the built-in part to extend: the default, or the first other if that is "none"."""
    named = [section.parts.values() for section in SECTIONS.values()]
    defaults = {of: default for parts in named for of, default in parts}
    usual = defaults.get(kind, "")
    return next(part for part in (usual, *BUILT_IN[kind]) if part not in ("", "none"))


def example_keys(part: type[BaseModel]) -> dict[str, Any]:
    """Returns key -> an example value, for keys of `part` that have one.

    The value is the first of the key's `examples`; without any, its value in `follows_clip` of a
    rule (default values in units of the clipping norm), unless that is zero or None.
    """
    follows = getattr(part, "follows_clip", {}).items()
    examples = {key: of.examples[0] for key, of in part.model_fields.items() if of.examples}
    return {**{key: value for key, value in follows if value}, **examples}


def _overridden(kind: str, base: type[BaseModel]) -> list[str]:
    """Returns the hooks that `base` or at least half of the parts with its base class define."""
    hooks = [name for name in hooks_of(kind, base) if inspect.isfunction(getattr(base, name, None))]
    parts = [find(kind, name, kind) for name in BUILT_IN[kind]]
    form = base.__mro__[1]
    parts = [part for part in parts if issubclass(part, form)]
    often = {name: sum(name in vars(part) for part in parts) for name in hooks}
    chosen = [name for name in hooks if name in vars(base) or 2 * often[name] >= len(parts)]
    return sorted(chosen, key=lambda name: (-often[name], name))


def _overriding(kind: str, base: type[BaseModel], hook: str) -> str:
    """Returns the source of an override of `hook`, which calls the overridden method of `base`.

    Its docstring is that of the contract.
    """
    signature = inspect.signature(getattr(base, hook))
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    forms: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*{0}",
        inspect.Parameter.VAR_KEYWORD: "**{0}",
        inspect.Parameter.KEYWORD_ONLY: "{0}={0}",
    }
    passed = ", ".join(forms.get(each.kind, "{0}").format(each.name) for each in plain[1:])
    stated = inspect.Signature(plain)
    stating = getattr(contract_of(kind), hook, None) or getattr(base, hook)
    text = inspect.getdoc(stating) or inspect.getdoc(getattr(base, hook)) or f"See {base.__name__}."
    end = "\n" if "\n" in text else ""
    about = textwrap.indent(f'"""{text}{end}"""', "    ")
    body = f"def {hook}{stated}:\n{about}\n    return super().{hook}({passed})"
    return textwrap.indent(body, "    ")


def _declarations(kind: str, base: type[BaseModel]) -> str:
    """Returns comments that list the declarations of `base` with a short value; "" without any."""
    lines = []
    for name in sorted(declared(contract_of(kind)) - hooks_of(kind, base) - {*base.model_fields}):
        value = vars(base).get(name, getattr(base, name, None))
        shown = "a property" if isinstance(value, property) else repr(value)
        if not callable(value) and len(shown) < 60:
            lines.append(f"    # {name}: {shown}")
    head = "    # Declarations, which privfed relies on; set those that your hooks change:\n"
    return head + "\n".join(lines) + "\n\n" if lines else ""


_MODULE = '''"""{made}: a part of your own.

In a run file, it is {named}.
"""

from {place} import {base}


class {made}({base}):
    """Describe it here: `privfed list` prints this sentence.

    Kind: {kind}. Contract: `{contract}`.
    """

{declarations}{hooks}
'''
_TEST = '''"""Checks the contract and a small run of `{name}:{made}`."""

from {name} import {made}

from privfed.testing import check_part


def test_it_keeps_the_contract_of_its_kind(tmp_path):
    check_part("{kind}", {made}({keys}), tmp_path)
'''
"""Templates of the two modules."""
