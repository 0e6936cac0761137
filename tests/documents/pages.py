"""The pages, and the test lanes in which they run."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = frozenset({"reference", "_build"})
"""Folders of pages that programs generate from the code's declarations."""


def first() -> list[Path]:
    """What a newcomer reads: the README, which every test run plays, and the tutorials."""
    return [ROOT / "README.md", *sorted((DOCS / "tutorials").glob("*.md"))]


def others() -> list[Path]:
    """Returns all other pages whose blocks run, in the slow lane."""
    pages = [page for page in sorted(DOCS.rglob("*.md")) if not _generated(page)]
    return [*(page for page in pages if page not in first()), ROOT / "CONTRIBUTING.md"]


def studies() -> list[Path]:
    """Returns pages of studies, whose commands take hours and are only parsed."""
    return sorted((ROOT / "experiments").glob("*/README.md"))


def every() -> list[Path]:
    """Returns all pages with commands for readers."""
    return [*first(), *others(), *studies(), *sorted((ROOT / "privfed").rglob("*.md"))]


def notebooks() -> list[Path]:
    """Returns the notebooks, which are shipped with their outputs."""
    return sorted((DOCS / "notebooks").glob("*.ipynb"))


def name(page: Path) -> str:
    """Returns a page's name in tests."""
    return str(page.relative_to(ROOT))


def _generated(page: Path) -> bool:
    return not GENERATED.isdisjoint(page.relative_to(DOCS).parts)
