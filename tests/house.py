"""Size limits of the code: `python tests/house.py`, or with the name of another package.

`test_house.py` enforces the limits: modules in a folder, lines of a file and of a function,
branches of a function, imports between rooms, import cycles, results named by a filler word, and
waits of tests that are too short for a slow machine.
"""

from __future__ import annotations

import ast
import functools
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("accounting", "attacks", "defenses", "privfed")
MOST_MODULES, MOST_LINES, MOST_BODY, MOST_BRANCHES, MOST_ARROWS = 20, 350, 50, 15, 200
FILLERS = frozenset({"found", "said", "told", "own", "one", "kept", "whole"})
LEAST_WAIT = 60
"""Shortest permitted wait of a test, in seconds; a shorter one fails on a slow machine."""
_CLOCKS = frozenset({"monotonic", "perf_counter", "process_time", "time"})
_WAITS = frozenset({"communicate", "join", "poll", "result", "settimeout", "wait"})
_BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.match_case)


@dataclass(frozen=True)
class Function:
    """A function's lines without its docstring, and its cyclomatic complexity."""

    name: str
    lines: int
    branches: int


def written_pages() -> list[Path]:
    """Returns the pages of this repository, without those of an environment in the same folder."""
    rooms = (*PACKAGES, "experiments", "tests", "docs")
    readmes = [page for room in rooms for page in (ROOT / room).glob("**/README.md")]
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *readmes]


def modules(package: str) -> dict[str, Path]:
    """Returns all modules of `package` by dotted name; a folder's `__init__` has the folder's
    name.
    """
    names = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def folders(package: str) -> Counter[str]:
    """Returns the number of modules in each folder, without `__init__`."""
    paths = modules(package).values()
    return Counter(
        str(path.parent.relative_to(ROOT)) for path in paths if path.name != "__init__.py"
    )


def oversized(package: str) -> Iterator[str]:
    """Yields each size in `package` above its limit: the rule, the size, the limit and the
    place.
    """
    for path in modules(package).values():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        yield from _beyond("lines of a module", lines, MOST_LINES, str(path.relative_to(ROOT)))
        for each in functions(path):
            yield from _beyond("lines of a function", each.lines, MOST_BODY, each.name)
            yield from _beyond("complexity", each.branches, MOST_BRANCHES, each.name)
    for folder, count in folders(package).items():
        yield from _beyond("modules of a folder", count, MOST_MODULES, folder)


def _beyond(rule: str, size: int, most: int, place: str) -> Iterator[str]:
    if size > most:
        yield f"{rule}: {size} of at most {most} in {place}"


def functions(path: Path) -> Iterator[Function]:
    """Yields every function and method of a file, including nested ones."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(f"{path.relative_to(ROOT)}:{node.name}", _body(node), _branches(node))


def imports(package: str) -> dict[str, set[str]]:
    """Returns the modules of `package` that each of its modules imports, anywhere in the file."""
    known = modules(package)
    return {name: {*_imported(path, known)} & {*known} - {name} for name, path in known.items()}


def arrows(package: str) -> set[tuple[str, str]]:
    """Returns the imports between rooms: folders directly in `package`, and modules next to
    them.
    """
    pairs = {(_room(a), _room(b)) for a, targets in imports(package).items() for b in targets}
    return {(a, b) for a, b in pairs if a != b}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns groups of modules that import each other, directly or indirectly."""
    reach = {node: _reached(graph, node) for node in graph}
    groups = {frozenset({b for b in reach[a] if a in reach.get(b, ())}) for a in graph}
    return sorted(sorted(group) for group in groups if group)


def fillers(path: Path) -> Iterator[str]:
    """Yields names that are bound to a result and do not describe it."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in FILLERS:
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.id}"
        elif isinstance(node, ast.arg) and node.arg in FILLERS:
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.arg}"
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in FILLERS:
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}()"


def short_waits(source: str) -> Iterator[tuple[int, str]]:
    """Yields lines, and their code, that bound a wait or a measured time by less than
    `LEAST_WAIT`.
    """
    for node in ast.walk(ast.parse(source)):
        if any(map(_is_short, _bounds(node))):
            yield node.lineno, ast.unparse(node)


def _bounds(node: ast.AST) -> list[ast.expr]:
    """Returns expressions of `node` that bound a duration."""
    match node:
        case ast.keyword(arg="timeout", value=value):
            return [value]
        case ast.BinOp(op=ast.Add()) if _reads_clock(node):
            return [node.left, node.right]
        case ast.Compare(ops=[*_, ast.Lt() | ast.LtE()], comparators=[*_, most]):
            return [most] if _reads_clock(node) else []
        case ast.Call(func=ast.Attribute(attr=attr), args=[first, *_]) if attr in _WAITS:
            return [first]
        case ast.Call(func=ast.Name(id="settings")):  # hypothesis'
            return [each.value for each in node.keywords if each.arg == "deadline"]
    return []


def _reads_clock(node: ast.AST) -> bool:
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in _CLOCKS for call in calls)


def _is_short(node: ast.expr) -> bool:
    number = node.value if isinstance(node, ast.Constant) else None
    return isinstance(number, int | float) and 0 < number < LEAST_WAIT


def twice(package: str) -> dict[str, list[str]]:
    """Returns public names that several modules define, and these modules."""
    places: dict[str, list[str]] = {}
    for module, path in modules(package).items():
        for node in _tree(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    return {name: where for name, where in places.items() if len(where) > 1}


def undocumented(package: str) -> Iterator[str]:
    """Public functions without a docstring, and methods that no class documents either."""
    documented = _documented()
    for path in modules(package).values():
        functions = [(node.name, node) for node in _tree(path).body if _is_function(node)]
        methods = [(name, node) for name, node in _methods(path) if name not in documented]
        for name, node in (*functions, *methods):
            if not name.startswith("_") and ast.get_docstring(node) is None:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {name}"


@functools.cache
def _documented() -> set[str]:
    """Names of methods that some class of the packages documents."""
    paths = [path for each in PACKAGES for path in modules(each).values()]
    return {name for path in paths for name, node in _methods(path) if ast.get_docstring(node)}


def _methods(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields the methods of public classes."""
    for group in _tree(path).body:
        if isinstance(group, ast.ClassDef) and not group.name.startswith("_"):
            yield from ((node.name, node) for node in group.body if _is_function(node))


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    start = node.body[0]
    documented = len(node.body) > 1 and ast.get_docstring(node, clean=False) is not None
    first = node.body[1].lineno if documented else start.lineno
    return (node.end_lineno or first) - first + 1


def _branches(node: ast.AST) -> int:
    count = 1
    for child in ast.walk(node):
        count += isinstance(child, _BRANCHES)
        count += len(child.values) - 1 if isinstance(child, ast.BoolOp) else 0
        count += len(child.ifs) if isinstance(child, ast.comprehension) else 0
    return count


def _imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph.get(waiting.pop(), ()):
            if target in graph and target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def code_lines(path: Path) -> int:
    """Returns the lines of code in a module, without docstrings, comments and blank lines."""
    tree, source = _tree(path), path.read_bytes()
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and _is_text(node)]
    prose = {line for node in texts for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in {*skipped, tokenize.ENCODING, tokenize.ENDMARKER}
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - prose)


def _is_text(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def figures(package: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields each figure of the code's size: its name, today's value, the aim, and an earlier
    value.
    """
    paths = list(modules(package).values())
    yield "modules", f"{len(paths)}", "500", "784"
    yield "lines of code", f"{sum(map(code_lines, paths)):,}", "43,000", "47,600"
    from flows import flows  # which imports all of privfed

    aims = {"a plan": ("45", "71"), "a round, central noise": ("40", "56")}
    aims["a round, masks"] = ("60", "91")
    for name, (entered, switches) in flows().items():
        yield f"modules that {name} enters", f"{entered}", *aims[name]
        yield f"switches between modules in {name}", f"{switches:,}", "", ""
    yield "arrows between rooms", f"{len(arrows(package))}", "200", "282"
    yield "circles of imports", f"{len(circles(imports(package)))}", "0", "0"
    yield "functions and files beyond a limit", f"{len([*oversized(package)])}", "0", "14"


def main(package: str = "privfed") -> None:
    """Prints the figures, and the items that they count."""
    print(f"{'':58}{'today':>8}{'aim':>8}{'before':>8}")
    for what, today, aim, before in figures(package):
        print(f"{what:58}{today:>8}{aim:>8}{before:>8}")
    paths = list(modules(package).values())
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    print("fullest folders", folders(package).most_common(4))
    print("longest files", Counter(lengths).most_common(5))
    named = [name for path in paths for name in fillers(path)]
    lists = {
        "beyond a limit": [*oversized(package)],
        "circles": circles(imports(package)),
        "filler names": named,
        "defined twice": [*twice(package).items()],
        "without a docstring": [*undocumented(package)],
    }
    for name, found in lists.items():
        print(f"{name}: {len(found)}", *found, sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
