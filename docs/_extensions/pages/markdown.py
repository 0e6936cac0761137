"""Small pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_STARS = re.compile(r"(?P<emphasis>(?<![\w/*])(\*{1,2})(?![\s*])[^*]*[^\s*]\2(?![\w*]))|\*")
"""*Emphasis* and **strong** emphasis, which stay, or any other star."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, or nothing where it would have no row."""
    lines = [_row(row) for row in rows]
    return "\n".join([_row(head), "|" + "---|" * len(head), *lines, ""]) if lines else ""


def within(name: str, block: str) -> str:
    """`block` with the style `name`, see `docs/_static/house.css`."""
    return f":::{{container}} {name}\n{block}:::\n" if block else ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code(text: object) -> str:
    """`text` as code."""
    return f"`{text}`"


def prose(text: str) -> str:
    """A docstring's `text` as Markdown that means no more than it says.

    Its formulas have stars, bars and brackets; code and *emphasis* stay.
    """
    pieces = text.split("`")
    pieces[::2] = [_escaped(piece) for piece in pieces[::2]]
    return "`".join(pieces)


def _escaped(text: str) -> str:
    for sign in "\\[]<$_":
        text = text.replace(sign, "\\" + sign)
    return _STARS.sub(lambda found: found["emphasis"] or "\\*", text)


def sentence(text: str) -> str:
    """`text` with a full stop."""
    text = text.strip()
    return text if not text or text.endswith((".", ":", "!", "?")) else text + "."


def join(blocks: Iterable[str]) -> str:
    """Blocks of a page, with an empty line between them."""
    return "\n\n".join(block.strip("\n") for block in blocks if block.strip()) + "\n"
