"""The studies: every folder of `experiments` that says what it tested and what came out."""

from __future__ import annotations

import re
from pathlib import Path

from pages.markdown import ROOT, table, within

SHORT = re.compile(r"# (?P<title>.+)\n\n(?P<short>(?:> .+\n)+)\n")
CLAIM = re.compile(r"\*(?P<claim>.+?)\* (?P<verdict>.+)")
_NO_STUDIES = ("benchmarks", "federation")


def folders() -> list[Path]:
    """Those with a README, but for what claims nothing."""
    readmes = sorted((ROOT / "experiments").glob("*/README.md"))
    return [readme.parent for readme in readmes if readme.parent.name not in _NO_STUDIES]


def in_short(folder: Path) -> tuple[str, str, str]:
    """A study's title, claim and verdict, which its README begins with."""
    begins = SHORT.match((folder / "README.md").read_text("utf-8"))
    short = (
        " ".join(line.removeprefix("> ") for line in begins["short"].splitlines()) if begins else ""
    )
    match = CLAIM.fullmatch(short)
    if begins is None or match is None:
        raise ValueError(f"{folder}/README.md: its title is followed by no `> *claim* verdict`")
    return begins["title"], match["claim"], match["verdict"]


def table_row(folder: Path) -> tuple[str, str, str]:
    """A study's line of the table."""
    title, claim, verdict = in_short(folder)
    return f"[{title}]({folder.name}.md)", claim, verdict


def table_of_all() -> str:
    """All studies with claim and verdict."""
    rows = map(table_row, folders())
    return within("cards", table(["study", "what was claimed or asked", "verdict"], rows))
