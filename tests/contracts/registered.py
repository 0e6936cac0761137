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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lanes import every_case

from privfed.core.answers import check_answers, contract_of, names_read
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN, CONTRACTS
from privfed.core.text import nearest

Contract = Callable[..., None]
ROOT = Path(__file__).resolve().parents[2]


def example_of(kind: str, part: type[Any], name: str, **keys: Any) -> Any:
    """Returns a small valid part: `keys`, examples that fields declare, and defaults of all others.

    Raises:
      AssertionError: if a required field declares no example.
    """
    refuse_near_misses(kind, part)
    follows = {key: value for key, value in getattr(part, "follows_clip", {}).items() if value}
    for key, field in part.model_fields.items():
        if field.examples:
            keys.setdefault(key, field.examples[0])
        assert key in keys or not field.is_required(), (
            f"{kind} {name!r} requires {key!r}, which declares no example; declare it as "
            f"{key}: ... = Field(examples=[...])"
        )
    return part(**{**follows, **keys})


@functools.cache
def promised_elsewhere() -> frozenset[str]:
    """Members of protocols that a part may fulfil in addition to its kind's contract."""
    names = set()
    for package in ("privfed", "attacks", "defenses"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            for node in ast.walk(ast.parse(text)) if "Protocol" in text else ():
                if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
                    names |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return frozenset(names)


def refuse_near_misses(kind: str, part: type[Any]) -> None:
    """Raises `AssertionError` for a public method that is no hook and that no code calls."""
    contract = {*dir(contract_of(kind))} | {
        name for base in part.__mro__[1:] for name in dir(base) if not name.startswith("_")
    }
    used = promised_elsewhere().union(*map(names_read, vars(part).values()))
    for name, value in vars(part).items():
        if inspect.isfunction(value) and not name.startswith("_") and name not in contract | used:
            close = nearest(name, contract)
            meant = f"did you mean {close}? Else " if close else ""
            raise AssertionError(
                f"{part.__qualname__}.{name} is no hook of {kind}, so nothing calls it; {meant}"
                "begin its name with an underscore, or remove it"
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
    kind: str, contracts: Mapping[Contract, Sequence[Any]], dear: Mapping[Contract, set[str]] = {}
) -> tuple[Callable[..., None], Callable[..., None]]:
    """The tests of a kind's `contracts`, each with the wrong parts that it has to reject.

    A `dear` contract is a long test for all parts but the named ones.
    """
    assert kind in CONTRACTS
    assert all(contracts.values()), "a contract without a part that it rejects proves nothing"
    assert all(named <= {*BUILT_IN[kind]} for named in dear.values())
    quick = {
        name: [each for each in contracts if each not in dear or name in dear[each]]
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
        with pytest.raises(AssertionError):
            check(contract, wrong, tmp_path)

    return test_every_registered_part_keeps, test_a_wrong_part_is_rejected_by
