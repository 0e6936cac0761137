"""The studies: every folder of `experiments` that says what it tested and what came out."""

from __future__ import annotations

import re
from pathlib import Path

from pages.markdown import ROOT, table

SHORT = re.compile(r"\A# (.+)\n\n> \*(.+?)\*\s+(.+?)\n\n", re.DOTALL)


def folders() -> list[Path]:
    """Those with a README, but the benchmarks."""
    readmes = sorted((ROOT / "experiments").glob("*/README.md"))
    return [readme.parent for readme in readmes if readme.parent.name != "benchmarks"]


def in_short(folder: Path) -> tuple[str, str, str]:
    """A study's title, claim and verdict, which its README begins with."""
    match = SHORT.match((folder / "README.md").read_text("utf-8"))
    if match is None:
        raise ValueError(
            f"{folder}/README.md does not begin with its title and `> *claim* verdict`"
        )
    title, claim, verdict = (" ".join(text.replace("\n> ", " ").split()) for text in match.groups())
    return title, claim, verdict


def table_row(folder: Path) -> tuple[str, str, str]:
    """A study's line of the table."""
    title, claim, verdict = in_short(folder)
    return f"[{title}]({folder.name}.md)", claim, verdict


def table_of_all() -> str:
    """All studies with claim and verdict."""
    return table(["study", "what was claimed or asked", "verdict"], map(table_row, folders()))
