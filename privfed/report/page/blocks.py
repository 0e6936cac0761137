"""What a page is made of: chapters of blocks, each of which `templates/blocks.html` can show.

All text here is plain: names of parts, columns and files are others' words, and are made visible
and escaped where they are rendered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup


@dataclass(frozen=True)
class Paragraph:
    """A text of its own."""

    text: str
    kind: ClassVar = "paragraph"


@dataclass(frozen=True)
class Quotation:
    """A statement that a reader may quote, as it stands."""

    text: str
    kind: ClassVar = "quotation"


@dataclass(frozen=True)
class BulletList:
    """Several statements, of which each stands for itself."""

    items: Sequence[str]
    kind: ClassVar = "listing"


@dataclass(frozen=True)
class ShellLine:
    """A command to type."""

    text: str
    kind: ClassVar = "command"


@dataclass(frozen=True)
class Facts:
    """What there is to know, and what is known of it."""

    pairs: Mapping[str, str]
    kind: ClassVar = "facts"


@dataclass(frozen=True)
class Figures:
    """A table with a heading for each column; the first cell of a line names the line.

    `numeric` are the columns whose cells are numbers; `marked` the lines that differ from what is
    usual, which their text says, too. A sorted table is one that readers may sort.
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
    """A drawing as SVG, what it shows in words, and its numbers as a table.

    On a `plate` it keeps its light background, since its colours mean something.
    """

    svg: Markup
    caption: str
    numbers: Figures | None = None
    plate: bool = False
    kind: ClassVar = "picture"


Block = Paragraph | Quotation | BulletList | ShellLine | Facts | Figures | Picture


@dataclass(frozen=True)
class Banner:
    """What a reader has to know before anything else."""

    title: str
    text: str


@dataclass(frozen=True)
class Chapter:
    """A part of a page under a heading of its own; `banner` stands at its top."""

    name: str
    heading: str
    blocks: Sequence[Block]
    banner: Banner | None = None


@dataclass(frozen=True)
class Page:
    """All of a page: what it is of, what has to be known first, and its chapters."""

    title: str
    of: str
    banners: Sequence[Banner]
    chapters: Sequence[Chapter]
    written_by: str

    @property
    def sortable(self) -> bool:
        """Whether any table of the page may be sorted, for which a script is needed."""
        blocks = (block for chapter in self.chapters for block in chapter.blocks)
        return any(isinstance(block, Figures) and block.sortable for block in blocks)
