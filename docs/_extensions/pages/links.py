"""Links of pages and READMEs, from where they stand to where they are shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from pages.markdown import ROOT

LINK = re.compile(r"(\]\()([^()#\s:]+)((?:#[\w-]+)?\))")
DOCS = ROOT / "docs"


def relocated(text: str, source: Path, page: Path) -> str:
    """The text of the file `source` as it has to be written in `page`.

    A README that has a page is linked there; other files of the repository can be downloaded.
    """

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / unquote(link[2])).resolve()
        if not target.is_file():
            return link[0]
        return link[1] + quote(os.path.relpath(page_of(target), page.parent)) + link[3]

    return LINK.sub(moved, text)


def page_of(target: Path) -> Path:
    """The page that shows the README `target`; any other file itself."""
    if target.name != "README.md" or not target.is_relative_to(ROOT / "experiments"):
        return target
    name = target.parent.name
    return DOCS / "benchmarks.md" if name == "benchmarks" else DOCS / "studies" / f"{name}.md"
