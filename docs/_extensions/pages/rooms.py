"""The picture of the house: its rooms as layers, drawn from the imports, as SVG."""

from __future__ import annotations

import ast
import functools
import textwrap
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

from pages.markdown import ROOT

BESIDE = ("accounting", "attacks", "defenses")
LEFT, WIDTH, STEP, HEIGHT = 50, 490, 62, 50
ABREAST = 3
"""How many rooms of a layer stand beside each other: what they say has to fit into their boxes."""
COLUMNS = dict(zip(BESIDE, (605, 725, 845), strict=True))
"""Where the lines to the packages on the right run."""


def picture() -> str:
    """The picture, to be put into a page as it is."""
    lines = (layer[at : at + ABREAST] for layer in layers() for at in range(0, len(layer), ABREAST))
    rows = [("experiments",), *lines]
    shapes = [*_frame(len(rows)), *_columns(rows)]
    for place, row in enumerate(rows):
        shapes += _row(place, row)
    below = STEP * len(rows) + 20
    shapes += [
        _box(x - 57, below, 114, name, _question(name), 2 * HEIGHT) for name, x in COLUMNS.items()
    ]
    size = f'viewBox="0 0 910 {below + 2 * HEIGHT + 6}"'
    title = "The rooms of privfed in layers, and which of them use the packages beside it"
    drawn = "\n".join(shapes)
    svg = f'<svg {size} role="img" aria-label="{title}">\n{drawn}\n</svg>'
    return f'```{{raw}} html\n<div class="house">{svg}</div>\n```\n'


def layers() -> list[tuple[str, ...]]:
    """The layers of privfed as the contract in `pyproject.toml` orders them, folders alone."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    contracts = tools["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each.get("containers") == ["privfed"])
    rows = [tuple(room.strip() for room in layer.split("|")) for layer in contract["layers"]]
    folders = [tuple(room for room in row if (ROOT / "privfed" / room).is_dir()) for row in rows]
    return [row for row in folders if row]


@functools.cache
def uses(room: str) -> set[str]:
    """Which of the packages beside privfed `room` imports, anywhere."""
    folder = ROOT / room if room == "experiments" else ROOT / "privfed" / room
    return {name for path in folder.rglob("*.py") for name in _imported(path)} & {*BESIDE}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def _question(room: str) -> str:
    """What a package or room says it is for, in its first sentence."""
    place = ROOT / room if (ROOT / room / "__init__.py").exists() else ROOT / "privfed" / room
    documentation = ast.get_docstring(ast.parse((place / "__init__.py").read_text("utf-8"))) or ""
    first = documentation.split("\n")[0].replace("`", "")
    end = min(at for sign in "?.:" if (at := (first + ".").find(sign)) >= 0)
    return first[: end + 1].rstrip(".:")


def _frame(count: int) -> Iterator[str]:
    """The outline of privfed, and the one arrow that says which way imports run."""
    top, bottom = STEP - 4, STEP * count
    yield (
        f'<rect class="frame" x="{LEFT - 10}" y="{top}" width="{WIDTH + 20}" '
        f'height="{bottom - top}" rx="8"/>'
    )
    yield f'<path class="way" d="M 22 12 V {bottom - 4} m -6 -10 l 6 10 l 6 -10"/>'
    middle = bottom // 2
    yield (
        f'<text class="small" transform="rotate(-90 14 {middle})" x="14" y="{middle}" '
        'text-anchor="middle">imports run this way, and never back</text>'
    )


def _columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A line for each package beside privfed, down from the first layer that uses it."""
    bottom = STEP * len(rows) + 20
    for name, x in COLUMNS.items():
        places = [at for at, row in enumerate(rows) if any(name in uses(room) for room in row)]
        if places:
            first = STEP * places[0] + HEIGHT // 2 + 4
            yield f'<path class="line" d="M {x} {first} V {bottom}"/>'


def _row(place: int, rooms: tuple[str, ...]) -> Iterator[str]:
    """The boxes of a layer, and a dot on each line that it uses."""
    top, gap = STEP * place + 4, 8
    width = (WIDTH - gap * (len(rooms) - 1)) / len(rooms)
    for number, room in enumerate(rooms):
        yield _box(LEFT + number * (width + gap), top, width, room, _question(room))
    middle = top + HEIGHT // 2
    for name, x in COLUMNS.items():
        if users := [room for room in rooms if name in uses(room)]:
            label = f"{', '.join(users)} → {name}"
            yield f'<circle cx="{x}" cy="{middle}" r="4.5"><title>{label}</title></circle>'


def _box(x: float, y: float, width: float, name: str, question: str, height: float = HEIGHT) -> str:
    lines = textwrap.wrap(question, max(int(width / 6.4), 14))
    texts = [
        f'<text class="small" x="{x + 10:g}" y="{y + 33 + 12 * number:g}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return (
        f'<rect class="room" x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="5"/>'
        f'<text class="name" x="{x + 10:g}" y="{y + 18:g}">{escape(name)}</text>{"".join(texts)}'
    )
