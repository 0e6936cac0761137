"""Tests that run contracts over every registered part, and show that wrong parts fail them.

A contract is a function `(part)` or `(part, folder)` that raises `AssertionError` for a part that
violates the contract of its kind. `contract_tests` makes two tests of the contracts of a kind:
every part of the registry satisfies each of them, and each of them rejects the planted wrong parts.
So every registered part is tested, and every contract can fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from privfed.core.parts import find
from privfed.core.registry import BUILT_IN, CONTRACTS

Contract = Callable[..., None]


def example_of(kind: str, part: type[Any], name: str, **keys: Any) -> Any:
    """Returns a small valid part: `keys`, examples that fields declare, and defaults of all others.

    Raises:
      AssertionError: if a required field declares no example.
    """
    follows = {key: value for key, value in getattr(part, "follows_clip", {}).items() if value}
    for key, field in part.model_fields.items():
        if field.examples:
            keys.setdefault(key, field.examples[0])
        assert key in keys or not field.is_required(), (
            f"{kind} {name!r} requires {key!r}, which declares no example; declare it as "
            f"{key}: ... = Field(examples=[...])"
        )
    return part(**{**follows, **keys})


def example(kind: str, name: str, **keys: Any) -> Any:
    """Returns the example of the built-in part `name` of `kind`, with these `keys`."""
    return example_of(kind, find(kind, name, kind), name, **keys)


def examples(kind: str) -> dict[str, Any]:
    """Returns an example of every built-in part of `kind`, by name."""
    return {name: example(kind, name) for name in BUILT_IN[kind]}


def check(contract: Contract, part: Any, folder: Any) -> None:
    """Runs `contract` on `part`; `folder` is for contracts that need one."""
    folders = [folder] if len(inspect.signature(contract).parameters) > 1 else []
    contract(part, *folders)


def contract_tests(
    kind: str, contracts: Mapping[Contract, Sequence[Any]]
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Returns the tests of a kind's `contracts`, each with the wrong parts that it has to
    reject.
    """
    assert kind in CONTRACTS
    pairs = [
        pytest.param(contract, wrong, id=f"{contract.__name__}-{type(wrong).__name__}")
        for contract, wrongs in contracts.items()
        for wrong in wrongs
    ]
    assert all(contracts.values()), "a contract without a part that it rejects proves nothing"

    @pytest.mark.parametrize("contract", contracts, ids=lambda each: each.__name__)
    @pytest.mark.parametrize("name", BUILT_IN[kind])
    def test_every_registered_part_keeps(name, contract, tmp_path):
        check(contract, example(kind, name), tmp_path)

    @pytest.mark.parametrize("contract, wrong", pairs)
    def test_a_wrong_part_is_rejected_by(contract, wrong, tmp_path):
        with pytest.raises(AssertionError):
            check(contract, wrong, tmp_path)

    return test_every_registered_part_keeps, test_a_wrong_part_is_rejected_by
