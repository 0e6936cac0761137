"""The HTML page about a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from accounting.accountants import ACCOUNTANTS
from accounting.curves import Curve, over_delta, over_rounds, spent_events
from accounting.guarantee import guarantee
from accounting.statement import at_delta
from privfed.analytics.regression.release import regression_of
from privfed.analytics.regression.table import RegressionColumns
from privfed.analytics.survival.release import survival_of
from privfed.analytics.survival.table import SurvivalTable
from privfed.core.text import ceiling, number, size_of
from privfed.report.page.blocks import Banner, Block, Chapter, Facts, Figures, Page, Paragraph
from privfed.report.page.checked import audit_chapter
from privfed.report.page.configuration import configuration_chapter, environment, provenance_chapter
from privfed.report.page.drawing import Axes, Line, lines_picture
from privfed.report.page.learning import learning_chapter
from privfed.report.page.left_out import left_out_chapters
from privfed.report.page.promise import headline, promise_chapter
from privfed.report.page.run_facts import PageFacts
from privfed.report.page.simulated import simulation_chapter
from privfed.report.regression import regression_chapter
from privfed.report.survival import survival_chapter
from privfed.report.tables import counted
from privfed.run.forecast import RoundForecast


def messages_chapter(facts: PageFacts) -> Chapter:
    """Returns the page's chapter on the signal-to-noise ratio, the clipping norm, and traffic."""
    exchange = facts.exchange
    if exchange is None:
        why = "Parts that the configuration names are not available, so this cannot be computed."
        return Chapter("messages", "Noise and messages", [Paragraph(why)])
    blocks: list[Block] = [Facts({**_noise(exchange), **_clip(facts), **_traffic(facts, exchange)})]
    points = [(line["round"], line["clip"]) for line in facts.rounds if line.get("clip")]
    axes = Axes("round", "clip", from_zero=True)
    if picture := lines_picture("clip", "The released clip by round", axes, [Line("clip", points)]):
        blocks.append(picture)
    return Chapter("messages", "Noise and messages", blocks)


def _noise(exchange: RoundForecast) -> dict[str, str]:
    """Returns table rows on the averaged update's signal-to-noise ratio, or the lack of noise."""
    if exchange.signal is None or exchange.noise is None:
        return {"noise": "none is added"}
    ratio = exchange.signal / exchange.noise if exchange.noise else math.inf
    return {
        "signal-to-noise": f"{number(float(f'{ratio:.2g}'))} : 1",
        "signal": f"the norm of the averaged update is at most {exchange.signal:g}",
        "noise": f"the norm of its noise is about {exchange.noise:.2g}",
    }


def _clip(facts: PageFacts) -> dict[str, str]:
    plan = facts.plan
    if plan is None or not plan.mechanism.private:
        return {}
    first = " at first; it follows clients' norms" if plan.mechanism.adaptive else ""
    return {"clip": f"{plan.config.mechanism.clip:g}{first}"}


def _traffic(facts: PageFacts, exchange: RoundForecast) -> dict[str, str]:
    parties, down, up = exchange.parties, exchange.down, exchange.up
    party = "site" if facts.config and facts.config.by_sites else "client"
    return {
        "expected cohort": f"{exchange.cohort:g} clients",
        f"a {party} is sent": f"{size_of(down / parties)} a round",
        f"a {party} sends": f"{size_of(up / parties)} a round",
        "total": f"{size_of(down)} down, {size_of(up)} up a round",
        **_client_state_row(facts),
    }


def _client_state_row(facts: PageFacts) -> dict[str, str]:
    """Returns a table row on the state of clients; empty if they keep none."""
    if not (facts.config and facts.config.keeping):
        return {}
    what = "clients keep state between rounds, which is never sent; no ε would cover its release"
    return {"client state": f"{facts.config.keeping}: {what}"}


def spending_chapter(facts: PageFacts) -> Chapter:
    """Returns the page's chapter on the spent ε, with pictures of ε over rounds and over δ."""
    ledger = facts.record.ledger
    delta = float(ledger.terms["delta"])
    rounds = over_rounds(ledger.prior, spent_events(ledger), delta)
    budget = ledger.budget
    level = ("budget", budget) if budget and math.isfinite(budget) else None
    pictures = (
        lines_picture(
            "epsilon-by-round",
            f"ε by charged round, {at_delta(delta)} ({facts.meaning})",
            Axes("charged rounds", "ε", ceiling, level=level, from_zero=True),
            _lines(rounds),
        ),
        lines_picture(
            "privacy-profile",
            f"ε over δ after all rounds: the privacy profile ({facts.meaning})",
            Axes("δ", "ε", ceiling, log=True, from_zero=True),
            _lines(over_delta(ledger.spending, delta)),
        ),
    )
    drawn: list[Block] = [picture for picture in pictures if picture]
    return Chapter("epsilon", "Privacy spent", [_words(facts), *_parts(facts), *drawn])


def _parts(facts: PageFacts) -> list[Block]:
    """Returns a table of the ε of training alone and of evaluation by clients alone.

    Empty unless the run's charges have at least two different events.
    """
    charged = facts.record.ledger.run_spending
    if len(charged) < 2:
        return []
    delta, evaluating = (
        float(facts.record.ledger.terms["delta"]),
        facts.plan and facts.plan.evaluation,
    )
    lines = [
        [
            "evaluation by clients" if evaluating and event == evaluating.event else "training",
            str(count),
            ceiling(guarantee({event: count}, delta).epsilon),
        ]
        for event, count in charged.items()
    ]
    columns = ["part", "charges", f"ε by itself, {at_delta(delta)}"]
    caption = "Parts of the run; the ε spent is their composition, which is less than their sum"
    return [Figures(caption, columns, lines, frozenset({1, 2}))]


def _words(facts: PageFacts) -> Paragraph:
    bound = facts.audit.guarantee
    assert bound is not None
    text = (
        f"{counted(facts.audit.charges, 'charged round')} spent {bound.line()} "
        f"({facts.meaning}, accountant {bound.accountant})."
    )
    if math.isinf(bound.epsilon):
        text += " No accountant has a finite bound, so there is no curve."
    return Paragraph(text)


def _lines(curve: Curve) -> Sequence[Line]:
    """Returns a line for each accountant that has a finite bound."""
    bounds = {name: [(at, by[name]) for at, by in curve] for name in ACCOUNTANTS}
    lines = (
        Line(name, [(at, epsilon) for at, epsilon in points if epsilon is not None])
        for name, points in bounds.items()
    )
    return [line for line in lines if line.drawable]


def run_page(facts: PageFacts, simulation: bool) -> Page:
    """Returns the page's content; with `simulation`, also values that no ε covers.

    Without `simulation`, the page may be published.
    """
    chapters = [
        promise_chapter(facts),
        spending_chapter(facts),
        *_results(facts),
        messages_chapter(facts),
        *left_out_chapters(facts),
        audit_chapter(facts),
        *([simulation_chapter(facts)] if simulation else []),
        configuration_chapter(facts),
        provenance_chapter(facts),
    ]
    title = facts.record.path.resolve().name
    return Page(title, headline(facts), tuple(_banners(facts)), chapters, environment())


def _results(facts: PageFacts) -> Iterator[Chapter]:
    """Yields the chapter on what was released: survival curves, a regression, or metrics.

    Yields nothing for a survival analysis or a regression without a charge.
    """
    source, path = facts.config and facts.config.source, facts.record.path
    if not isinstance(source, SurvivalTable | RegressionColumns):
        yield learning_chapter(facts)
    elif not facts.audit.charges:
        return
    elif isinstance(source, SurvivalTable):
        yield survival_chapter(survival_of(path))
    else:
        yield regression_chapter(regression_of(path))


def _banners(facts: PageFacts) -> Iterator[Banner]:
    """Yields notices on a refuted, absent or lost guarantee, simulation, stop, and unended run."""
    terms = facts.audit.terms
    if facts.audit.refuted:
        yield Banner("Refuted", "The run's canaries refute the ε that its ledger claims.")
    if why := terms.get("guarantee"):
        yield Banner("No guarantee", f"{why}; every ε here is nominal.")
    for lost in facts.lost_claims:
        yield Banner("No longer holds", lost)
    if note := terms.get("note"):
        yield Banner("Simulation", f"{str(note).removeprefix('simulation: ')}; ε is nominal.")
    if why := facts.summary.get("stopped_by_byzantine"):
        yield Banner("Stopped", f"{why}.")
    if not facts.summary:
        yield Banner("Not ended", "The run has not ended; the ε below is that spent so far.")
