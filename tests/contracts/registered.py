"""Tests that run contracts over every registered part, and show that wrong parts fail them.

A contract is a function `(part)` or `(part, folder)` that raises `AssertionError` for a part that
violates the contract of its kind. `contract_tests` makes two tests of the contracts of a kind:
every part of the registry satisfies all of them, and each of them rejects the planted wrong parts.
So every registered part is tested, and every contract can fail.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lanes import every_case
from pydantic import BaseModel

from privfed.config.catalog import example_keys
from privfed.core.answers import check_answers, contract_of, declared, names_read
from privfed.core.parts import Part, find
from privfed.core.registry import BUILT_IN, CONTRACTS
from privfed.core.text import distance, nearest

Contract = Callable[..., None]
ROOT = Path(__file__).resolve().parents[2]


def example_of(kind: str, part: type[Any], name: str, **keys: Any) -> Any:
    """Returns a small valid part: `keys`, examples that fields declare, and defaults of all others.

    Raises:
      AssertionError: if a required field declares no example.
    """
    refuse_near_misses(kind, part)
    keys = {**example_keys(part), **keys}
    for key, field in part.model_fields.items():
        assert key in keys or not field.is_required(), (
            f"{kind} {name!r} requires {key!r}, which declares no example; declare it as "
            f"{key}: ... = Field(examples=[...])"
        )
    return part(**keys)


@functools.cache
def read_elsewhere() -> tuple[frozenset[str], frozenset[str]]:
    """Methods of protocols that a part may fulfil in addition to its kind's contract, and the
    attributes that the packages read.
    """
    methods, attributes = set(), set()
    for package in ("privfed", "attacks", "defenses"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            attributes |= {*re.findall(r"\.(\w+)\b(?! = )|, \"(\w+)\"", text)}
            for node in ast.walk(ast.parse(text)) if "Protocol)" in text else ():
                if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
                    methods |= {
                        each.name for each in node.body if isinstance(each, ast.FunctionDef)
                    }
    return frozenset(methods), frozenset(map("".join, attributes))


def refuse_near_misses(kind: str, part: type[Any]) -> None:
    """Raises `AssertionError` for a hook, declaration or key of a part that nothing reads."""
    contract = contract_of(kind)
    for each in part.__mro__:
        if each not in {Part, *BaseModel.__mro__, *contract.__mro__}:
            _refuse_unread(kind, each, declared(contract), each is part)


def _refuse_unread(kind: str, made: type[Any], known: set[str], last: bool) -> None:
    """Raises `AssertionError` for a public name that the class `made` adds and nothing reads.

    A name that differs by one letter from one of the contract is rejected, whatever else reads it.
    Methods of bases, in contrast to those of the `last` class, may be new hooks.
    """
    methods, attributes = read_elsewhere()
    known = known.union(*map(declared, {*made.__mro__[1:]} - {*BaseModel.__mro__}))
    own = set().union(*map(names_read, vars(made).values()))
    checks = made.__pydantic_decorators__
    for name in sorted(declared(made) - known - own - {*checks.field_validators}):
        close, method = nearest(name, known), inspect.isfunction(vars(made).get(name))
        slip = close and name not in made.model_fields and distance(name, close) == 1
        if slip or name not in (methods if method and last else attributes):
            what = "key" if name in made.model_fields else "hook" if method else "declaration"
            meant = f"did you mean {close}? Else " if close else ""
            raise AssertionError(
                f"{made.__qualname__}.{name} is no {what} of {kind}, so nothing "
                f"{'calls' if method else 'reads'} it; {meant}begin its name with an underscore, "
                "or remove it"
            )


def example(kind: str, name: str, **keys: Any) -> Any:
    """Returns the example of the built-in part `name` of `kind`, with these `keys`."""
    return example_of(kind, find(kind, name, kind), name, **keys)


def examples(kind: str) -> dict[str, Any]:
    """Returns an example of every built-in part of `kind`, by name."""
    return {name: example(kind, name) for name in BUILT_IN[kind]}


@contextmanager
def answers_checked(kind: str, part: type[Any]) -> Iterator[None]:
    """A context in which hooks of a built-in part refuse what their contract does not allow."""
    hooks = {name: value for name, value in vars(part).items() if not name.startswith("__")}
    hooks |= {"__call__": vars(part)["__call__"]} if "__call__" in vars(part) else {}
    check_answers(kind, part, ours=True)
    try:
        yield
    finally:
        for name, value in hooks.items():
            if vars(part)[name] is not value:
                setattr(part, name, value)


def check(contract: Contract, part: Any, folder: Any) -> None:
    """Runs `contract` on `part`; `folder` is for contracts that need one."""
    folders = [folder] if len(inspect.signature(contract).parameters) > 1 else []
    contract(part, *folders)


def contract_tests(
    kind: str, contracts: Mapping[Contract, Sequence[Any]], costly: Mapping[Contract, set[str]] = {}
) -> tuple[Callable[..., None], Callable[..., None]]:
    """The tests of a kind's `contracts`, each with the wrong parts that it has to reject.

    A `costly` contract is a long test for all parts but the named ones.
    """
    assert kind in CONTRACTS
    assert all(contracts.values()), "a contract without a part that it rejects proves nothing"
    assert all(named <= {*BUILT_IN[kind]} for named in costly.values())
    quick = {
        name: [each for each in contracts if each not in costly or name in costly[each]]
        for name in BUILT_IN[kind]
    }
    long = [
        pytest.param(name, [each], id=f"{name}-{each.__name__}", marks=pytest.mark.slow)
        for name in BUILT_IN[kind]
        for each in contracts
        if each not in quick[name]
    ]
    cases = [pytest.param(name, each, id=name) for name, each in quick.items()] + long
    pairs = [(each, wrong) for each, wrongs in contracts.items() for wrong in wrongs]

    @pytest.mark.parametrize(("name", "contracts"), cases)
    def test_every_registered_part_keeps(name, contracts, tmp_path):
        @every_case("contract", contracts)
        def keeps(contract, tmp_path):
            part = example(kind, name)
            with answers_checked(kind, type(part)):
                check(contract, part, tmp_path)

        keeps(tmp_path=tmp_path)

    @every_case("contract, wrong", pairs)
    def test_a_wrong_part_is_rejected_by(contract, wrong, tmp_path):
        with pytest.raises(AssertionError, match=r"\S"):
            check(contract, wrong, tmp_path)

    return test_every_registered_part_keeps, test_a_wrong_part_is_rejected_by
