"""The tables and the forest plot of a released logistic regression."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from rich.console import Group
from rich.table import Table
from rich.text import Text

from privfed.analytics.regression.logistic import LevelEstimate
from privfed.analytics.regression.release import RegressionRelease
from privfed.core.text import visible
from privfed.grid.pictures.figures import COLOURS
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

_HEAD = (
    *("level", "clients", "proportion", "95 % interval", "coefficient", "error"),
    *("odds ratio", "95 % interval", "p"),
)


def regression_tables(release: RegressionRelease) -> Group:
    """Returns a table of odds ratios, and one of tests and cost."""
    table = Table(box=None, header_style="cyan", padding=(0, 2, 0, 0))
    table.add_column(_HEAD[0], overflow="fold")
    for header in _HEAD[1:]:
        table.add_column(header, justify="right")
    for line in _lines(release):
        table.add_row(*map(Text, line))
    return Group(table, "", rows(_facts(release) | release_rows(release)))


def _lines(release: RegressionRelease) -> list[list[str]]:
    """Returns the cells of the table: a line for each level."""
    return [
        [f"{visible(covariate.covariate)} = {visible(each.level)}", *_cells(each, place == 0)]
        for covariate in release.regression.covariates
        for place, each in enumerate(covariate.levels)
    ]


def _cells(each: LevelEstimate, reference: bool) -> list[str]:
    """Returns the cells of a level, after its name."""
    crude = [
        estimated_count(each.clients),
        decimal(each.proportion),
        f"{decimal(each.proportion_low)} to {decimal(each.proportion_high)}",
    ]
    if reference and each.coefficient is not None:
        return [*crude, "reference", "", "1", "", ""]
    interval = f"{_ratio(each.low)} to {_ratio(each.high)}"
    return [
        *crude,
        decimal(each.coefficient),
        decimal(each.standard_error),
        _ratio(each.odds_ratio),
        "—" if each.low is None else interval,
        _p_value(each.p_value),
    ]


def _ratio(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:.2f}" if 0.1 <= value < 100.0 else f"{value:.3g}"


def _p_value(value: float | None) -> str:
    return "—" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def _facts(release: RegressionRelease) -> dict[str, str]:
    """Returns the joint tests and counts, by label."""
    regression, facts = release.regression, {}
    for each in regression.covariates:
        facts[f"test of {visible(each.covariate)}"] = (
            "no estimate: the counts are too close to their noise"
            if each.statistic is None
            else f"chi-squared {each.statistic:.3g}, {each.degrees} df, p = {each.p_value:.2g}"
        )
    occurred = ", ".join(map(visible, release.occurred))
    return facts | {
        "intercept": f"{decimal(regression.intercept)}, standard error "
        f"{decimal(regression.intercept_error)}",
        "outcome": f"{visible(release.outcome)} = {occurred}",
        "clients": f"{estimated_count(release.clients)}; {estimated_count(release.unusable)} "
        "without a usable entry",
        "noise": f"standard deviation {release.noise:.3g} on each cell; intervals contain it",
    }


def regression_chapter(release: RegressionRelease) -> Chapter:
    """Returns the chapter with the forest plot, odds ratios, and tests."""
    words = (
        "Odds ratios of a logistic regression on main effects. They follow from one noised table, "
        "and intervals and tests contain both sampling and noise. Proportions are crude: they are "
        "not adjusted for the other covariates."
    )
    columns = frozenset(range(1, len(_HEAD)))
    return Chapter(
        "regression",
        "Odds ratios",
        [
            Paragraph(words),
            _picture(release),
            Figures("Odds ratios relative to reference levels", _HEAD, _lines(release), columns),
            Facts(_facts(release)),
        ],
    )


def _picture(release: RegressionRelease) -> Picture:
    """Draws the odds ratio of each level with its interval, on a logarithmic axis."""
    title = f"Odds ratios of {release.outcome} with 95 % intervals"
    shown = _drawn(release)
    with (
        without_warnings(),
        canvas(1, 1, (4.8, 0.8 + 0.24 * len(shown))) as (figure, ((panel,),)),
    ):
        panel.set_xscale("log")
        panel.axvline(1.0, color="#888888", lw=0.8)
        for place, (_, each) in enumerate(shown):
            if each.odds_ratio is not None:
                ends = [each.low or each.odds_ratio, each.high or each.odds_ratio]
                panel.plot(ends, [place, place], color=COLOURS[0], lw=1.4)
                panel.plot(each.odds_ratio, place, "s", color=COLOURS[0], ms=4)
        _set_ticks(panel)
        panel.set_yticks(range(len(shown)), [visible(name) for name, _ in shown])
        panel.set(xlabel="odds ratio", ylim=(len(shown) - 0.5, -0.5))
        panel.grid(visible=False, axis="y")
        drawn = as_svg(figure)
    texts = (
        f"{visible(name)}: {with_interval(each.odds_ratio, each.low, each.high, missing='none')}"
        for name, each in shown
    )
    return Picture(inline(drawn, "regression", title, f"{'; '.join(texts)}."), title)


def _set_ticks(panel: Axes) -> None:
    """Sets plain numbers on the logarithmic axis, more of them if it spans less."""
    low, high = panel.get_xlim()
    decades = math.log10(high / low)
    steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades < 1 else (1.0, 2.0, 5.0)
    panel.xaxis.set_major_locator(LogLocator(subs=steps if decades < 2 else (1.0,)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_locator(NullLocator())


def _drawn(release: RegressionRelease) -> Sequence[tuple[str, LevelEstimate]]:
    """Returns the name and the estimate of each level, in the order of the plot."""
    return [
        (f"{covariate.covariate} = {each.level}", each)
        for covariate in release.regression.covariates
        for each in covariate.levels
    ]
