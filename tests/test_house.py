"""The house stays as it is drawn: small folders, files and functions, and no circle of imports."""

import pytest
from house import (
    MOST_ARROWS,
    MOST_BODY,
    MOST_BRANCHES,
    MOST_LINES,
    MOST_MODULES,
    PACKAGES,
    arrows,
    circles,
    fillers,
    folders,
    functions,
    imports,
    modules,
)


@pytest.mark.parametrize("package", PACKAGES)
def test_files_and_functions_stay_small(package):
    paths = modules(package).values()
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}
    every = [function for path in paths for function in functions(path)]
    assert [one for one in every if one.lines > MOST_BODY or one.branches > MOST_BRANCHES] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_around_a_corner(package):
    assert circles(imports(package)) == []


def test_circles_are_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_rooms_hold_few_modules_and_know_few_others():
    full = {name: count for name, count in folders("privfed").items() if count > MOST_MODULES}
    assert full == {}
    assert len(arrows("privfed")) <= MOST_ARROWS


@pytest.mark.parametrize("package", PACKAGES)
def test_results_are_named_for_what_they_are(package):
    assert [name for path in modules(package).values() for name in fillers(path)] == []
