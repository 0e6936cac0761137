"""How to check what a page says, and which programs it was worked out by."""

from __future__ import annotations

import platform
import shlex
from importlib.metadata import version

from privfed.report.page.blocks import Chapter, Facts, Paragraph, ShellLine
from privfed.report.page.run_facts import PageFacts
from privfed.version import __version__

_LIBRARIES = ("torch", "numpy", "scipy", "dp-accounting")


def provenance_chapter(facts: PageFacts) -> Chapter:
    """The ledger's head, the one command, and the versions at hand."""
    head = str(facts.audit.ledger_head)
    words = (
        "One command re-computes every ε on this page from the ledger, and holds the run's files "
        "against it. A head that was kept elsewhere shows that nothing before it was cut off."
    )
    pairs = {
        "run": str(facts.path),
        "ledger head": f"{head} at {facts.audit.charges} charges",
        "configuration": f"SHA-256 {facts.audit.terms.get('config', '—')}",
        "page made by": environment(),
    }
    command = f"privfed audit {shlex.quote(str(facts.path))} --head {head}"
    return Chapter(
        "verify", "How to verify it", [Paragraph(words), ShellLine(command), Facts(pairs)]
    )


def environment() -> str:
    """The programs that are at hand where a page is written."""
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return f"privfed {__version__}, Python {platform.python_version()}, {libraries}"
