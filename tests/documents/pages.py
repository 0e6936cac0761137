"""Which pages there are, and which of them run where."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = frozenset({"reference", "_build"})
"""Folders of pages that are written by programs, from what the code declares."""


def first() -> list[Path]:
    """What a newcomer reads: the README, which every test run plays, and the tutorials."""
    return [ROOT / "README.md", *sorted((DOCS / "tutorials").glob("*.md"))]


def others() -> list[Path]:
    """All other pages whose blocks run: in the slow lane."""
    pages = [page for page in sorted(DOCS.rglob("*.md")) if not _generated(page)]
    return [*(page for page in pages if page not in first()), ROOT / "CONTRIBUTING.md"]


def studies() -> list[Path]:
    """Pages of studies: their commands take hours, and are parsed."""
    return sorted((ROOT / "experiments").glob("*/README.md"))


def every() -> list[Path]:
    """All pages that tell readers what to type."""
    return [*first(), *others(), *studies(), *sorted((ROOT / "privfed").rglob("*.md"))]


def notebooks() -> list[Path]:
    """The notebooks, which are shipped with what they print."""
    return sorted((DOCS / "notebooks").glob("*.ipynb"))


def name(page: Path) -> str:
    """How a test calls a page."""
    return str(page.relative_to(ROOT))


def _generated(page: Path) -> bool:
    return not GENERATED.isdisjoint(page.relative_to(DOCS).parts)
