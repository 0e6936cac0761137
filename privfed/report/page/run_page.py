"""The page of a run."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.report.page.blocks import Banner, Page
from privfed.report.page.checked import audit_chapter
from privfed.report.page.configuration import configuration_chapter
from privfed.report.page.learning import learning_chapter
from privfed.report.page.left_out import left_out_chapters
from privfed.report.page.messages import messages_chapter
from privfed.report.page.promise import headline, promise_chapter
from privfed.report.page.provenance import environment, provenance_chapter
from privfed.report.page.run_facts import PageFacts
from privfed.report.page.simulated import simulation_chapter
from privfed.report.page.spending import spending_chapter


def run_page(facts: PageFacts, simulation: bool) -> Page:
    """All that may be shown of a run; what no ε covers only where `simulation` asks for it."""
    chapters = [
        promise_chapter(facts),
        spending_chapter(facts),
        learning_chapter(facts),
        messages_chapter(facts),
        *left_out_chapters(facts),
        audit_chapter(facts),
        *([simulation_chapter(facts)] if simulation else []),
        configuration_chapter(facts),
        provenance_chapter(facts),
    ]
    title = facts.path.resolve().name
    return Page(title, headline(facts), tuple(_banners(facts)), chapters, environment())


def _banners(facts: PageFacts) -> Iterator[Banner]:
    """What has to be known first, whatever was asked for."""
    terms = facts.audit.terms
    if facts.audit.refuted:
        yield Banner("Refuted", "The run's canaries refute the ε that its ledger claims.")
    if why := terms.get("guarantee"):
        yield Banner("No guarantee", f"{why}; every ε here is nominal.")
    for lost in facts.lost_claims:
        yield Banner("No longer holds", lost)
    if note := terms.get("note"):
        yield Banner("Simulation", f"{str(note).removeprefix('simulation: ')}; ε is nominal.")
    if why := facts.summary.get("stopped_by_liars"):
        yield Banner("Stopped", f"{why}.")
    if not facts.summary:
        yield Banner("Not ended", "The run has not ended; what it spent up to now is below.")
