"""Cases of a parametrisation that every run has, and those that long tests alone have."""

from collections.abc import Iterable
from typing import Any

import pytest


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
