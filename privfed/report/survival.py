"""The console tables and the page chapter of survival curves that `privfed survive` released."""

from __future__ import annotations

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from privfed.analytics.survival.curves import SurvivalCurve, SurvivalEstimate
from privfed.analytics.survival.release import SurvivalRelease
from privfed.core.text import visible
from privfed.grid.pictures.figures import COLOURS, DASHES
from privfed.report.canvas import canvas
from privfed.report.page.blocks import Chapter, Facts, Figures, Paragraph, Picture
from privfed.report.page.drawing import as_svg, inline, without_warnings
from privfed.report.tables import (
    decimal,
    estimated_count,
    release_rows,
    rows,
    with_interval,
)

_SHOWN = 10
"""Number of times in a curve's table."""


def survival_tables(release: SurvivalRelease) -> Group:
    """Returns a table of each survival curve, with 95 % intervals, and one of other results.

    The last table has the tests, summaries, counts, and the guarantee of the release.
    """
    parts: list[Table | Text | str] = []
    for curve in release.curves:
        table = Table(box=None, header_style="cyan", padding=(0, 2, 0, 0))
        for header in ("time", "at risk", "survival", "95 % interval", "95 % band"):
            table.add_column(header, justify="right")
        for line in _lines(curve):
            table.add_row(*map(Text, line))
        title = [Text(f"{visible(release.group)} = {visible(curve.group)}", style="bold")]
        parts += [*(title if release.group else []), table, ""]
    return Group(*parts, rows(_facts(release) | release_rows(release)))


def _lines(curve: SurvivalCurve) -> list[list[str]]:
    """Returns the lines of a curve's table, for at most `_SHOWN` of its times."""
    places = np.unique(np.linspace(0, len(curve.points) - 1, _SHOWN).round().astype(int))
    return [
        [
            f"{point.time:g}",
            estimated_count(point.at_risk.value),
            decimal(point.survival.value),
            _interval(point.survival),
            _interval(point.band),
        ]
        for point in (curve.points[place] for place in places)
    ]


def _facts(release: SurvivalRelease) -> dict[str, str]:
    """Returns medians, means, tests, hazard ratios, counts and noise as texts by label."""
    facts = {}
    for curve in release.curves:
        of = f" {visible(curve.group)}" if release.group else ""
        facts[f"median{of}"] = _with_interval(curve.median)
        facts[f"restricted mean{of}"] = _with_interval(curve.restricted_mean)
    if release.log_rank is not None:
        test = release.log_rank
        facts["log-rank test"] = (
            f"chi-squared {test.statistic:.3g}, {test.degrees} df, p = {test.p_value:.2g}"
        )
    for each in release.hazard_ratios:
        ratio = with_interval(each.ratio, each.low, each.high, missing="not reached")
        p_value = "" if each.p_value is None else f", p = {each.p_value:.2g}"
        facts[f"hazard {visible(each.group)}"] = (
            f"{ratio} relative to {visible(each.reference)}{p_value}"
        )
    counted = ", ".join(estimated_count(each) for each in release.clients)
    return facts | {
        "clients": f"{counted}; {estimated_count(release.unusable)} without a usable entry",
        "noise": f"standard deviation {release.noise:.3g} on each cell; intervals contain it",
    }


def survival_chapter(release: SurvivalRelease) -> Chapter:
    """Returns the page's chapter with survival curves, bands, numbers at risk, and tests."""
    head = ["group", *(f"{start:g}" for start in release.edges[:-1])]
    lines = [
        [curve.group or "all", *(estimated_count(point.at_risk.value) for point in curve.points)]
        for curve in release.curves
    ]
    columns = frozenset(range(1, len(head)))
    words = (
        "Curves, intervals and tests follow from one noised table, and contain both sampling and "
        "noise. Shaded: simultaneous 95 % bands."
    )
    return Chapter(
        "survival",
        "Survival",
        [
            Paragraph(words),
            _picture(release),
            Figures("Estimated numbers at risk at the beginning of each bin", head, lines, columns),
            Facts(_facts(release)),
        ],
    )


def _picture(release: SurvivalRelease) -> Picture:
    """Draws the Kaplan-Meier curve of each group with its simultaneous band."""
    title = f"Kaplan-Meier curves by {release.time}"
    with without_warnings(), canvas(1, 1, (4.8, 3.2)) as (figure, ((panel,),)):
        for place, curve in enumerate(release.curves):
            colour = COLOURS[place % (len(COLOURS) - 1)]
            times = [release.edges[0], *(point.time for point in curve.points)]
            low, high, value = (
                [1.0, *(_end(end, other) for end, other in ends)]
                for ends in (
                    [(point.band.low, 0.0) for point in curve.points],
                    [(point.band.high, 1.0) for point in curve.points],
                    [(point.survival.value, 0.0) for point in curve.points],
                )
            )
            label = visible(curve.group) if release.group else "all clients"
            panel.fill_between(times, low, high, step="post", color=colour, alpha=0.18, lw=0)
            dash = DASHES[place % len(DASHES)]
            panel.step(times, value, where="post", color=colour, linestyle=dash, label=label)
        panel.set(xlabel=visible(release.time), ylabel="survival", ylim=(0.0, 1.02))
        panel.legend()
        drawn = as_svg(figure)
    ends = "; ".join(
        f"{visible(curve.group) or 'all clients'} ends at "
        f"{decimal(curve.points[-1].survival.value)}"
        for curve in release.curves
    )
    return Picture(inline(drawn, "survival", title, f"{ends}."), title)


def _end(value: float | None, other: float) -> float:
    return other if value is None else value


def _interval(estimate: SurvivalEstimate) -> str:
    return f"{decimal(estimate.low)} to {decimal(estimate.high)}"


def _with_interval(estimate: SurvivalEstimate) -> str:
    return with_interval(estimate.value, estimate.low, estimate.high, missing="not reached")
