"""The content of a page: chapters of blocks, which `templates/blocks.html` renders.

All text is plain. Names of parts, columns and files are untrusted, so texts are escaped when they
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
    """A list of independent statements, as bullet points."""

    items: Sequence[str]
    kind: ClassVar = "listing"


@dataclass(frozen=True)
class ShellLine:
    """A command that the reader can type in a shell."""

    text: str
    kind: ClassVar = "command"


@dataclass(frozen=True)
class Facts:
    """A list of facts, each a name and its value."""

    pairs: Mapping[str, str]
    kind: ClassVar = "facts"


@dataclass(frozen=True)
class Figures:
    """A table on a page; the first cell of a line is the line's name.

    Attributes:
      caption: the table's caption.
      columns: headings of columns.
      lines: the cells of each line.
      numeric: indices of the columns with numbers.
      marked: indices of highlighted lines; a text in the line also states the reason.
      sortable: whether readers of the page can sort the table.
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
    """A drawing on a page.

    Attributes:
      svg: the drawing, as SVG elements of the page.
      caption: the caption.
      numbers: the drawn numbers as a table; None if there are none.
      plate: whether the drawing has a light background in dark mode too, because its colours must
        not change.
    """

    svg: Markup
    caption: str
    numbers: Figures | None = None
    plate: bool = False
    kind: ClassVar = "picture"


Block = Paragraph | Quotation | BulletList | ShellLine | Facts | Figures | Picture


@dataclass(frozen=True)
class Banner:
    """A notice at the top of a page or a chapter."""

    title: str
    text: str


@dataclass(frozen=True)
class Chapter:
    """A chapter of a page; `name` identifies the chapter in links."""

    name: str
    heading: str
    blocks: Sequence[Block]
    banner: Banner | None = None


@dataclass(frozen=True)
class Page:
    """The content of a page.

    Attributes:
      title: the title.
      of: the subtitle, which names the run, grid or claim that the page is about.
      banners: notices at the top.
      chapters: the chapters.
      written_by: versions of the programs that wrote the page.
    """

    title: str
    of: str
    banners: Sequence[Banner]
    chapters: Sequence[Chapter]
    written_by: str

    @property
    def sortable(self) -> bool:
        """Whether a table of the page is sortable, so that the page needs a script."""
        blocks = (block for chapter in self.chapters for block in chapter.blocks)
        return any(isinstance(block, Figures) and block.sortable for block in blocks)
