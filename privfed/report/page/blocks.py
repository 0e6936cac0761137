"""The blocks of a page: chapters of blocks that `templates/blocks.html` shows.

All text here is plain: names of parts, columns and files are untrusted, and are escaped when they
are rendered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text."""

    text: str
    kind: ClassVar = "paragraph"


@dataclass(frozen=True)
class Quotation:
    """A statement that a reader may quote verbatim."""

    text: str
    kind: ClassVar = "quotation"


@dataclass(frozen=True)
class BulletList:
    """Several independent statements."""

    items: Sequence[str]
    kind: ClassVar = "listing"


@dataclass(frozen=True)
class ShellLine:
    """A command to type."""

    text: str
    kind: ClassVar = "command"


@dataclass(frozen=True)
class Facts:
    """Names and values of facts."""

    pairs: Mapping[str, str]
    kind: ClassVar = "facts"


@dataclass(frozen=True)
class Figures:
    """A table with column headings; the first cell of a line names the line.

    Attributes:
      numeric: columns of numbers.
      marked: lines that differ from the usual, which their text also states.
      sortable: whether readers may sort the table.
    """

    caption: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()
    sortable: bool = False
    kind: ClassVar = "figures"


@dataclass(frozen=True)
class Picture:
    """A drawing as SVG, its description, and its numbers as a table.

    On a `plate` it keeps its light background, because its colours carry meaning.
    """

    svg: Markup
    caption: str
    numbers: Figures | None = None
    plate: bool = False
    kind: ClassVar = "picture"


Block = Paragraph | Quotation | BulletList | ShellLine | Facts | Figures | Picture


@dataclass(frozen=True)
class Banner:
    """A notice that precedes everything else."""

    title: str
    text: str


@dataclass(frozen=True)
class Chapter:
    """A part of a page under its own heading, with an optional `banner` at its top."""

    name: str
    heading: str
    blocks: Sequence[Block]
    banner: Banner | None = None


@dataclass(frozen=True)
class Page:
    """A page: its title and subject, its notices, and its chapters."""

    title: str
    of: str
    banners: Sequence[Banner]
    chapters: Sequence[Chapter]
    written_by: str

    @property
    def sortable(self) -> bool:
        """Whether any table of the page is sortable, which needs a script."""
        blocks = (block for chapter in self.chapters for block in chapter.blocks)
        return any(isinstance(block, Figures) and block.sortable for block in blocks)
