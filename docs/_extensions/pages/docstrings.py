"""Docstrings, which are plain text with `code` and *emphasis*, as reStructuredText."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pydantic import BaseModel

EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=\w)([^*`]*?\w)\1(?![\w*])")
MOST = 8
"""The most arguments of a class that are shown."""
ENDS = " \n.,:;!?)]}'\"-/"
"""What reStructuredText takes right after code."""


def as_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape, in place, what reStructuredText would take for markup; doctests stay."""
    lines[:] = escaped("\n".join(lines)).split("\n")


def escaped(text: str) -> str:
    """`text` of which formulas mean nothing but themselves."""
    text = re.sub(r"^( *)\* ", r"\1- ", text, flags=re.MULTILINE)
    paragraphs = re.split(r"(\n[ ]*\n)", text)
    return "".join(map(_paragraph, paragraphs))


def _paragraph(text: str) -> str:
    """A paragraph, of which a table is one, and a doctest what it was."""
    begin = text.lstrip()
    if begin.startswith(">>>"):
        return text
    return _table(text) if begin.startswith("|") and "|---" in begin else _marked(text)


def _table(text: str) -> str:
    """A Markdown table as a list of lists."""
    indent = text[: len(text) - len(text.lstrip())].rpartition("\n")[2]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for number, row in enumerate(text.strip().splitlines()):
        if number != 1:  # the line below the head
            cells = [_marked(cell.strip()) for cell in row.strip().strip("|").split("|")]
            lines += [f"   {'  ' if at else '* '}- {cell}" for at, cell in enumerate(cells)]
    return "\n".join(f"{indent}{line}" if line else "" for line in lines)


def _marked(paragraph: str) -> str:
    """A paragraph whose code is literal, and whose emphasis is all other markup that it has."""
    pieces = paragraph.split("`")
    text = _plain(pieces[0])
    for code, after in zip(pieces[1::2], pieces[2::2], strict=False):
        glue = "" if not after or after[0] in ENDS else "\\ "
        before = "\\ " if text and text[-1] not in " \n([{'\"-/" else ""
        text += f"{before}``{code}``{glue}{_plain(after)}"
    return text


def _plain(text: str) -> str:
    marked = EMPHASIS.sub(lambda match: f"\x00{len(match[1])}{match[2]}\x00{len(match[1])}", text)
    for sign in ("\\", "*", "|"):
        marked = marked.replace(sign, "\\" + sign)
    marked = re.sub(r"_(?!\w)", r"\\_", marked)
    return marked.replace("\x001", "*").replace("\x002", "**")


def unsigned(app: Any, what: str, name: str, obj: Any, *_: Any) -> tuple[str, str] | None:
    """Parts and configurations are shown without their keys, which stand in the run file."""
    if not isinstance(obj, type):
        return None
    many = dataclasses.is_dataclass(obj) and len(dataclasses.fields(obj)) > MOST
    return ("", "") if many or issubclass(obj, BaseModel) else None
