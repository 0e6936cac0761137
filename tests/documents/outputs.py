"""Outputs shown on a page, compared with the printed outputs."""

from __future__ import annotations

import difflib
import re
import textwrap

ANY_PATH = "…"
"""Stands for any text within a line; alone in a line, for any lines."""
WIDTH = 108
"""Largest length of a line of a page."""
_CONTINUED = re.compile(r"^( .*\S)[ \t]*\n {8,}(?=\S)", re.MULTILINE)
_MESSAGE = re.compile(r"^(privfed: .*\S)[ \t]*\n {9}(?=\S)", re.MULTILINE)
_VARYING = re.compile(r"(?P<hex>\b[0-9a-f]{12,}\b)|(?P<bar>[━╸╺]+)|(?P<number>[-+]?\d[\d.,:e%+-]*)")
_LIKE = {"hex": "[0-9a-f]{12,}", "bar": "[━╸╺]* ?", "number": r"[-+]?\d[\d.,:e%+-]*"}


def difference(shown: str, printed: str, shape: bool = False, exact: tuple[str, ...] = ()) -> str:
    """Returns the difference between `printed` and the output `shown`; "" if there is none.

    Spaces that align columns do not count, nor do empty lines at both ends. With `shape`, numbers
    may differ, except in lines that hold a word of `exact`.
    """
    expected, got = lines(shown), lines(printed)
    pattern = "".join(_line(line, shape and not _has(line, exact)) for line in expected)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in got)):
        return ""
    return "\n".join(difflib.unified_diff(expected, got, "shown", "printed", lineterm="", n=1))


def lines(text: str) -> list[str]:
    """Returns lines of `text` without the effects of the screen's width."""
    unbroken = _unbroken(_unbroken(text), _MESSAGE)
    return [re.sub(r"\s+", " ", line).strip() for line in unbroken.strip().splitlines()]


def for_a_page(text: str) -> list[str]:
    """Returns lines of `text` as a page shows them, with cells of tables wrapped to its width."""
    shown = []
    for line in _unbroken(text).strip("\n").splitlines():
        cell = re.match(r" \S+(?: \S+)* {2,}|privfed: ", line)
        indent = " " * (len(cell[0]) if cell else 0)
        wrapped = textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False)
        shown += wrapped if cell and len(line) > WIDTH else [line.rstrip()]
    return shown


def _unbroken(text: str, continued: re.Pattern[str] = _CONTINUED) -> str:
    """Returns `text` with continued lines of tables joined, by their indentation."""
    again, text = text, continued.sub(r"\1 ", text)
    return text if text == again else _unbroken(text, continued)


def _has(line: str, words: tuple[str, ...]) -> bool:
    return any(word in line.split() for word in words)


def _line(line: str, shape: bool) -> str:
    if line == ANY_PATH:
        return r"(?:[^\n]*\n)*?"
    between = (_shaped(piece) if shape else re.escape(piece) for piece in line.split(ANY_PATH))
    return r"[^\n]*?".join(between) + r"\n"


def _shaped(text: str) -> str:
    pattern, end = "", 0
    for match in _VARYING.finditer(text):
        pattern += re.escape(text[end : match.start()]) + _LIKE[str(match.lastgroup)]
        end = match.end()
    return pattern + re.escape(text[end:])
