"""Tables of cases in one test: all are run, each alone, and each that fails is named."""

import os
import random

import pytest
from lanes import every_case, mostly_slow


def test_every_case_that_fails_is_named(tmp_path):
    ran = []

    @every_case("left, right", [(1, 1), (1, 2), pytest.param(3, 3, id="three"), (4, 5)])
    @every_case("sign", [1, -1], ids=["plus", "minus"])
    def compared(left, right, sign):
        ran.append((left, sign))
        assert sign * left == sign * right

    with pytest.raises(ExceptionGroup, match="2 of 4 cases fail") as raised:
        compared()
    assert ran == [(left, sign) for left in (1, 1, 3, 4) for sign in (1, -1)]
    named = [failure.__notes__ for failure in raised.value.exceptions]
    assert named == [["case: (1, (1, 2))"], ["case: (3, (4, 5))"]]
    inner = [failure.__notes__ for failure in raised.value.exceptions[0].exceptions]
    assert inner == [["case: (0, 'plus')"], ["case: (1, 'minus')"]]


def test_errors_that_were_expected_and_skips_fail_a_table():
    @every_case("ends", [lambda: pytest.fail("not raised"), lambda: pytest.skip("not here")])
    def ended(ends):
        ends()

    with pytest.raises(BaseExceptionGroup, match="2 of 2 cases fail"):
        ended()


def test_each_case_begins_as_a_test_of_its_own_does(tmp_path, monkeypatch):
    seen = []

    @every_case("case", range(3))
    def alone(case, tmp_path, monkeypatch):
        assert "PRIVFED_CASE" not in os.environ
        assert not [*tmp_path.iterdir()]
        monkeypatch.setenv("PRIVFED_CASE", "1")
        (tmp_path / "file").touch()
        seen.append(random.random())

    alone(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert len(seen) == 3
    assert len({*seen}) == 1


def test_a_table_has_cases_without_marks():
    with pytest.raises(ValueError, match="not enough values"):
        every_case("case", [])
    with pytest.raises(AssertionError, match="no marks"):
        every_case("case", mostly_slow([1, 2], 1))
