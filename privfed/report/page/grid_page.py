"""The HTML page about a grid of runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from privfed.core.errors import Refused
from privfed.grid.pictures.drawing import draw
from privfed.grid.pictures.figures import Figure
from privfed.report.page.blocks import (
    Banner,
    Block,
    Chapter,
    Facts,
    Page,
    Paragraph,
    Picture,
    ShellLine,
)
from privfed.report.page.configuration import environment
from privfed.report.page.drawing import inline, without_warnings
from privfed.report.page.grid_tables import (
    GridFacts,
    cell_figures,
    counted_ends,
    failures_table,
    joint_table,
    simulated,
    worst_table,
)

_SIMULATED = Banner(
    "Not covered by any ε",
    "This chapter was requested by --simulation: its figures show values that can be measured "
    "only in a simulation.",
)


def grid_page(facts: GridFacts, simulation: bool) -> Page:
    """Returns the page's content; with `simulation`, also values that no ε covers.

    Without `simulation`, the page may be published.
    """
    chapters = [
        _together(facts),
        Chapter("cells", "The cells", _cells(facts)),
        _pictures(facts, "figures", "Figures", facts.figures),
        *([_simulation(facts)] if simulation else []),
        _not_done(facts),
        _origin(facts),
    ]
    title, banners = facts.files.grid.stem, tuple(_banners(facts))
    return Page(title, counted_ends(facts), banners, chapters, environment())


def _banners(facts: GridFacts) -> Iterator[Banner]:
    """Yields notices on runs without a guarantee, and on simulations, if there are any."""
    void = [row for row in facts.rows if row.get("guarantee")]
    if void:
        why = ", ".join(dict.fromkeys(str(row["guarantee"]) for row in void))
        yield Banner("No guarantee", f"{len(void)} of {len(facts.rows)} runs: {why}.")
    if count := sum(bool(row.get("simulation")) for row in facts.rows):
        yield Banner("Simulation", f"{count} of {len(facts.rows)} runs; their ε is nominal.")


def _together(facts: GridFacts) -> Chapter:
    words = Paragraph(
        "If several runs over the same population are released, their ε compose: the joint ε is "
        "larger than the ε of any cell alone."
    )
    table = joint_table(facts)
    nothing = Paragraph("No run of the grid was charged yet, or the table states no joint ε.")
    return Chapter("together", "Joint guarantee of all runs", [words, table or nothing])


def _cells(facts: GridFacts) -> list[Block]:
    """Returns the table of cells and, unless `worst_first` is None, that of the worst attacks."""
    blocks: list[Block] = [cell_figures(facts)]
    if direction := facts.worst_first():
        blocks.append(worst_table(facts, direction))
    return blocks


def _pictures(facts: GridFacts, name: str, heading: str, figures: Sequence[Figure]) -> Chapter:
    """Returns the chapter `name` with figures, or the reasons why they cannot be drawn."""
    blocks: list[Block] = []
    for place, figure in enumerate(figures):
        try:
            blocks.append(_picture(facts, figure, f"{name}-{place}"))
        except Refused as refusal:
            blocks.append(Paragraph(f"{figure.name}: {refusal}"))
    nothing = Paragraph("The grid file has no [[figure]] for this chapter.")
    return Chapter(name, heading, blocks or [nothing])


def _picture(facts: GridFacts, figure: Figure, name: str) -> Picture:
    """Draws one figure of the grid file, on a light background.

    Raises `Refused` if it cannot be drawn.
    """
    with without_warnings():
        drawn = draw(figure, facts.rows_of(figure), [*facts.grid.axes])[f"{figure.name}.svg"]
    caption = figure.title or figure.name
    over = f"{figure.kind} over {figure.label(figure.x)}"
    by = f", by {figure.label(figure.by)}" if figure.by else ""
    worst = f", worst over {figure.label(figure.worst)}" if figure.worst else ""
    words = (
        f"{over}{by}{worst}; the tables on this page and next to the grid file have the numbers."
    )
    return Picture(inline(drawn, name, caption, words, themed=False), caption, plate=True)


def _simulation(facts: GridFacts) -> Chapter:
    figures = [figure for figure in facts.grid.figure if simulated(figure)]
    chapter = _pictures(facts, "simulation", "Simulation only", figures)
    return Chapter(chapter.name, chapter.heading, chapter.blocks, _SIMULATED)


def _not_done(facts: GridFacts) -> Chapter:
    table = failures_table(facts)
    return Chapter("not-done", "Runs not done", [table or Paragraph("All runs are done.")])


def _origin(facts: GridFacts) -> Chapter:
    """Returns the page's chapter on verification: commands, and the files with the numbers."""
    words = Paragraph(
        "The first command runs missing cells and writes the tables again; the second re-computes "
        "the joint ε from the ledgers of all runs."
    )
    path, folder = str(facts.files.grid), str(facts.files.folder)
    commands = [
        ShellLine(f"privfed experiment {shlex.quote(path)}"),
        ShellLine(f"privfed audit {shlex.quote(folder)}/cells/*/run"),
    ]
    tables = {"cells": str(facts.files.table), "over seeds": str(facts.files.summary)}
    tables |= {"over rounds": str(facts.files.rounds), "page made by": environment()}
    return Chapter("verify", "Verification", [words, *commands, Facts(tables)])
