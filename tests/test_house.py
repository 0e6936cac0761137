"""The house stays as it is drawn: small folders, files and functions, and no circle of imports."""

import re
from importlib import import_module
from importlib.util import find_spec
from urllib.parse import unquote

import house
import pytest
from house import (
    MOST_ARROWS,
    MOST_BRANCHES,
    PACKAGES,
    ROOT,
    arrows,
    circles,
    fillers,
    imports,
    modules,
    oversized,
    short_waits,
    twice,
    undocumented,
    written_pages,
)
from lanes import every_case

import privfed


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """Trees of all files stay for these tests alone: garbage is collected around them."""
    yield
    house._tree.cache_clear()


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_functions_and_folders_stay_small(package):
    assert list(oversized(package)) == []


def test_what_is_too_large_is_named_with_its_limit(tmp_path, monkeypatch):
    branches = "".join(f"    if x == {n}:\n        return {n}\n" for n in range(MOST_BRANCHES))
    (tmp_path / "small").mkdir()
    (tmp_path / "small/x.py").write_text(f"def name(x):\n{branches}    return x\n")
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "MOST_BODY", 10)
    assert list(oversized("small")) == [
        "lines of a function: 31 of at most 10 in small/x.py:name",
        "complexity: 16 of at most 15 in small/x.py:name",
    ]


@every_case("package", PACKAGES)
def test_no_module_imports_itself_around_a_corner(package):
    assert circles(imports(package)) == []


def test_circles_are_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


@every_case("package", PACKAGES)
def test_every_module_can_be_imported(package):
    """Also a module that no test imports; those of an engine only where it is installed."""
    engines = {".carriers.flower": "flwr", ".carriers.nvflare": "nvflare"}
    absent = [room for room, engine in engines.items() if not find_spec(engine)]
    for name in modules(package):
        if not name.endswith(".__main__") and not any(room in name for room in absent):
            import_module(name)


def test_rooms_know_few_others():
    count = len(arrows("privfed"))
    assert count <= MOST_ARROWS, f"arrows between rooms: {count} of at most {MOST_ARROWS}"


@every_case("package", PACKAGES)
def test_results_are_named_for_what_they_are(package):
    assert [name for path in modules(package).values() for name in fillers(path)] == []


@every_case("package", PACKAGES)
def test_public_functions_are_documented(package):
    assert list(undocumented(package)) == []


def test_tests_wait_for_minutes():
    """By `waiting.LONG`; a deadline that is to pass has a name, as `waiting.BRIEF`."""
    short = [
        f"{path.relative_to(ROOT)}:{line} {code}"
        for path in (ROOT / "tests").rglob("*.py")
        for line, code in short_waits(path.read_text("utf-8"))
    ]
    assert short == []


@every_case(
    ("code", "short"),
    [
        ("run(command, timeout=30)", True),
        ("run(command, timeout=LONG)", False),
        ("until = time.monotonic() + 5", True),
        ("until = time.monotonic() + 300", False),
        ("assert time.perf_counter() - began < 2.0", True),
        ("assert 0.1 <= time.monotonic() - began < 2", True),
        ("assert time.monotonic() - began >= 0.1", False),
        ("assert event.wait(10)", True),
        ("connection.settimeout(LONG)", False),
        ("', '.join(names)", False),
        ("settings(max_examples=3, deadline=20)", True),
    ],
)
def test_short_waits_are_seen(code, short):
    assert bool([*short_waits(code)]) == short


def test_a_public_name_is_defined_once():
    """But for the entry points of processes, and for what `privfed` itself offers."""
    assert twice("privfed").keys() <= {"main", *privfed.__all__}


def test_words_point_to_what_is_there():
    """Modules and names in backticks, in docstrings and pages."""
    sources = [path for package in PACKAGES for path in modules(package).values()]
    gone = set()
    for path in (*written_pages(), *sources):
        for name in re.findall(r"`((?:accounting|privfed)(?:\.\w+)+)`", path.read_text("utf-8")):
            if not (name.endswith(".json") or _is_there(name)):
                gone.add((str(path.relative_to(ROOT)), name))
    assert gone == set()


def test_pages_point_to_files_that_are_there():
    gone = set()
    for page in written_pages():
        text = page.read_text("utf-8")
        links = [page.parent / unquote(link) for link in re.findall(r"\]\(([^)#:]+\.\w+)\)", text)]
        paths = re.findall(r"`((?:privfed|tests|experiments)/[\w/]+\.(?:py|md))`", text)
        links += [ROOT / name for name in paths]
        gone |= {(page.name, str(link)) for link in links if not link.exists()}
    assert gone == set()


def _is_there(name):
    module, attributes = name, []
    while module:
        try:
            found = import_module(module)
            break
        except ModuleNotFoundError:
            module, _, attribute = module.rpartition(".")
            attributes.insert(0, attribute)
    for attribute in attributes:
        fields = getattr(found, "__dataclass_fields__", {}) | getattr(found, "model_fields", {})
        if attribute in fields:
            return True
        if not hasattr(found, attribute):
            return False
        found = getattr(found, attribute)
    return True
