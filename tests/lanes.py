"""Tests over many cases: those that every run has, those of the slow lane, and tables of cases."""

import functools
import inspect
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch


def mostly_slow(cases: Iterable[Any], *quick: Any, names: Iterable[str] = ()) -> list[Any]:
    """Marks all `cases` as slow but those in `quick`; `names` are ids for all of them.

    Raises:
      AssertionError: if a quick case is none of the cases.
    """
    cases = list(cases)
    ids = [*names] or [None] * len(cases)
    unknown = [case for case in quick if case not in cases]
    assert not unknown, f"no such cases: {unknown}"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in quick else pytest.mark.slow,
            id=name,
        )
        for case, name in zip(cases, ids, strict=True)
    ]


FULL = pytest.mark.parametrize(
    "full", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "full"]
)
"""Runs a test in both lanes; with `full`, at the size that its error probabilities are for."""


def seed_global_generators() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` walks the stack


def assert_each(cases: Iterable[tuple[Any, Callable[[], Any]]]) -> None:
    """Runs every named case from the same seeds, whether or not others fail.

    Raises:
      BaseExceptionGroup: the failures, each with a note that names its case.
    """
    cases, failures = [*cases], []
    assert cases, "no cases"
    for name, run in cases:
        seed_global_generators()
        try:
            run()
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as failure:
            failure.add_note(f"case: {name}"[:300])
            failures.append(failure)
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} cases fail", failures)


def every_case(
    names: str | Sequence[str], cases: Iterable[Any], ids: Any = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """One test of a table of cases, in place of `pytest.mark.parametrize`: it reports all failures.

    For cases that take milliseconds. Each case has a `tmp_path` and a `monkeypatch` of its own; all
    other fixtures are shared.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    table, labels = zip(*(_values(case, len(keys)) for case in cases), strict=True)
    if ids is not None:
        labels = [[*map(ids, values)] for values in table] if callable(ids) else [*ids]

    def in_one_test(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def test_all_cases(**fixtures: Any) -> None:
            runs = []
            for number, (values, label) in enumerate(zip(table, labels, strict=True)):
                given = fixtures | dict(zip(keys, values, strict=True))
                runs.append(((number, label), functools.partial(_alone, test, number, given)))
            assert_each(runs)

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in keys]
        vars(test_all_cases)["__signature__"] = signature.replace(parameters=left)
        return test_all_cases

    return in_one_test


def _values(case: Any, count: int) -> tuple[Sequence[Any], Any]:
    """Returns the values of a case and its name, which is the values if it has none."""
    if isinstance(case, type(pytest.param())):
        assert not case.marks, "a case of a table has no marks"
        return case.values, case.id or case.values
    values = (case,) if count == 1 else case
    return values, values


def _alone(test: Callable[..., None], number: int, given: dict[str, Any]) -> None:
    """Runs one case with a `tmp_path` and a `monkeypatch` of its own, if the test has them."""
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in given:
            given["monkeypatch"] = patch
        if folder := given.get("tmp_path"):
            given["tmp_path"] = folder / str(number)
            given["tmp_path"].mkdir()
        test(**given)
