"""A Markdown page as the blocks of code that it shows, each with the directives above it.

A comment directly above a fenced block directs it; several directives are separated by `;`:

    <!-- block: file=run.toml -->     the block is written to that file
    <!-- block: small=--set run.rounds=3 -->    appended to commands that take keys of run files
    <!-- block: small=rounds=120 -> rounds=3 -->    elsewhere: what stands for what in the text
    <!-- block: output -->            a text block: what the block before prints
    <!-- block: output=shape; exact=ε -->    numbers may differ, except in lines with these words
    <!-- block: exit=4 -->            with which exit code the commands end
    <!-- block: skip=the reason -->   nothing runs; commands are parsed all the same
    <!-- block: hidden                Python that readers do not see
    code
    -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

LANGUAGES = frozenset({"console", "python", "toml", "json", "text", "csv", "yaml", "bibtex"})
"""Permitted languages of a fence, other than a directive in braces."""
NESTED = frozenset({"admonition", "important", "note", "tip", "warning"})
"""Directives whose body is Markdown, with blocks of its own."""
OPAQUE = frozenset(
    {"automodule", "autoclass", "autofunction", "eval-rst", "figure", "image", "include"}
    | {"literalinclude", "math", "toctree"}
)
"""Directives without a block of their own."""
_DIRECTIVES = frozenset({"file", "small", "output", "exact", "exit", "skip"})
_COMMENT = re.compile(r"\A<!--\s*block:\s*(.*?)\s*-->\s*\Z", re.DOTALL)
_HIDDEN = re.compile(r"\Ahidden[ \t]*\n(.*)\Z", re.DOTALL)


class Failure(Exception):
    """An invalid block: the message names its page and line, and shows it."""


@dataclass(frozen=True)
class Directions:
    """The directives in the comments above a block."""

    file: str = ""
    small: tuple[str, ...] = ()
    output: str = ""
    exact: tuple[str, ...] = ()
    exit: int = 0
    skip: str = ""


@dataclass(frozen=True)
class Block:
    """One block of code; `line` is that of its first line of text."""

    page: Path
    line: int
    language: str
    text: str
    directions: Directions = Directions()
    hidden: bool = False

    def failure(self, reason: object) -> Failure:
        """Returns the fault of this block, with its page and line."""
        shown = "\n".join(f"    {line}" for line in self.text.splitlines())
        return Failure(f"{self.page}:{self.line}: {reason}\n\n{shown}")


def blocks(page: Path) -> list[Block]:
    """Returns the blocks of a page in their order. Raises `Failure` for an unclassifiable block."""
    return list(parsed(page.read_text(encoding="utf-8"), page))


def parsed(text: str, page: Path = Path("page.md"), first: int = 0) -> Iterator[Block]:
    """Yields the blocks of Markdown whose first line is line `first` of `page`, counted from 0."""
    waiting: Directions | None = None
    for token in MarkdownIt().parse(text):
        line = first + (token.map[0] if token.map else 0) + 1
        if token.type == "html_block" and (directed := _COMMENT.match(token.content)):
            if hidden := _HIDDEN.match(directed[1]):
                yield Block(page, line + 1, "python", hidden[1], hidden=True)
            else:
                waiting = _directions(directed[1], waiting, page, line)
        elif token.type == "fence":
            yield from _fenced(token, page, line, waiting or Directions())
            waiting = None
        elif token.type == "code_block":
            raise Block(page, line, "", token.content).failure("indented code; fence and mark it")
        elif waiting is not None:
            raise Failure(f"{page}:{line}: a block directive with no block below it")
    if waiting is not None:
        raise Failure(f"{page}: a block directive with no block below it")


def spans(text: str) -> Iterator[tuple[int, str]]:
    """Yields code within lines of text: the line of its paragraph, and the code."""
    for token in MarkdownIt().enable("table").parse(text):
        for child in token.children or ():
            if child.type == "code_inline":
                yield (token.map[0] if token.map else 0) + 1, child.content


def _fenced(token: Token, page: Path, line: int, directions: Directions) -> Iterator[Block]:
    language, *more = token.info.split() or [""]
    block = Block(page, line + 1, language, token.content, directions)
    name = language.strip("{}")
    if language == f"{{{name}}}" and name in NESTED:
        yield from parsed(token.content, page, line)
    elif language == f"{{{name}}}" and name in OPAQUE:
        return
    elif language not in LANGUAGES:
        raise block.failure(f"a block in {language!r}; expected one of {sorted(LANGUAGES)}")
    elif more:
        raise block.failure(f"{token.info!r}: directives stand in a comment above the block")
    else:
        _refuse_senseless(block)
        yield block


def _refuse_senseless(block: Block) -> None:
    directions, language = block.directions, block.language
    if directions.output and language not in ("text", "json"):
        raise block.failure("output is shown in a text or json block")
    if directions.exact and directions.output != "shape":
        raise block.failure("exact= goes with output=shape")
    if directions.exit and language != "console":
        raise block.failure("exit= goes with a console block")
    if directions.file and language == "console":
        raise block.failure("a console block is no file")


def _directions(text: str, earlier: Directions | None, page: Path, line: int) -> Directions:
    """Returns the directives of a comment, added to those of comments above it."""
    directions = earlier or Directions()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _DIRECTIVES or not (equals or name == "output"):
            raise Failure(f"{page}:{line}: unknown block directive {part!r}")
        if equals and not value:
            raise Failure(f"{page}:{line}: {name}= says nothing")
        if name == "output" and value not in ("", "shape"):
            raise Failure(f"{page}:{line}: output is exact, or output=shape")
        directions = replace(directions, **{name: _value(name, value, directions, page, line)})
    return directions


def _value(name: str, value: str, directions: Directions, page: Path, line: int) -> object:
    if name == "small":
        return (*directions.small, value)
    if name == "exact":
        return tuple(value.split())
    if name == "exit":
        if not value.isdecimal():
            raise Failure(f"{page}:{line}: exit={value} is no exit code")
        return int(value)
    return value or "exact"
