"""The console tables and the page chapter, with a forest plot, of a released regression."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from rich.console import Group
from rich.table import Table
from rich.text import Text

from accounting.statement import epsilon_at
from privfed.analytics.regression.estimates import CovariateEstimate, LevelEstimate, Regression
from privfed.analytics.regression.family import FAMILIES
from privfed.analytics.regression.pooled import Heterogeneity, PooledRegression
from privfed.analytics.regression.release import RegressionRelease
from privfed.core.text import visible
from privfed.grid.pictures.figures import COLOURS
from privfed.report.canvas import canvas
from privfed.report.page.blocks import Chapter, Facts, Figures, Paragraph, Picture
from privfed.report.page.drawing import as_svg, inline, without_warnings
from privfed.report.tables import (
    PARTIES,
    decimal,
    estimated_count,
    release_rows,
    rows,
    with_interval,
)


def regression_tables(release: RegressionRelease) -> Group:
    """Returns a table of coefficients and ratios, and one of tests, counts and the guarantee."""
    table = _table(_head(release), _lines(release.regression))
    return Group(table, "", rows(_facts(release) | release_rows(release)))


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, header_style="cyan", padding=(0, 2, 0, 0))
    table.add_column(head[0], overflow="fold")
    for header in head[1:]:
        table.add_column(header, justify="right")
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def pooled_tables(pooled: PooledRegression) -> Group:
    """Returns tables of a meta-analysis of several released regressions.

    One has the combined coefficients and ratios with their heterogeneity, the other the guarantees.
    """
    regression = pooled.regression
    lines = _lines(regression)
    differences = [
        pooled.heterogeneity[covariate.covariate].get(each.level)
        for covariate in regression.covariates
        for each in covariate.levels
    ]
    for line, about in zip(lines, differences, strict=True):
        line += ["", "", ""] if about is None else _difference(about)
    alone, all_of_them, nominal = pooled.guarantee, pooled.together, bool(pooled.note)
    together = epsilon_at(all_of_them.epsilon, all_of_them.delta, nominal)
    facts = {
        "estimate": "random effects" if pooled.random_effects else "common effect",
        **_intercept(regression),
        "clients": estimated_count(pooled.clients),
        "ε": f"{epsilon_at(alone.epsilon, alone.delta, nominal)} for a client in one release",
        "ε together": f"{together} for a client in all {len(pooled.runs)}",
        **({"caveat": all_of_them.caveat} if all_of_them.caveat else {}),
        "unit": f"{alone.unit}, {alone.relation}",
        **({"adversary": PARTIES[alone.against]} if alone.against in PARTIES else {}),
        **({"note": pooled.note} if pooled.note else {}),
    }
    head = ["covariate", *_estimated(regression), "sites", "I²", "p of Q"]
    return Group(_table(head, lines), "", rows(facts))


def _difference(about: Heterogeneity) -> list[str]:
    """Returns three cells on heterogeneity: number of sites, I², and the p-value of Q.

    Without a p-value, the last two are dashes.
    """
    shown = "—" if about.p_value is None else f"{100 * about.i_squared:.0f} %"
    return [str(about.sites), shown, _p_value(about.p_value)]


def _head(release: RegressionRelease) -> list[str]:
    """Returns the headers of the table."""
    counted = ["clients", "proportion", "95 % interval"] if release.counts else []
    return ["level" if counted else "covariate", *counted, *_estimated(release.regression)]


def _estimated(regression: Regression) -> list[str]:
    """Returns the headers of the columns with estimates and intervals."""
    ratio = [regression.ratio] if regression.ratio else []
    return ["coefficient", "std. error", *ratio, "95 % interval", "p"]


def _lines(regression: Regression) -> list[list[str]]:
    """Returns the lines of the table of coefficients.

    There is one for each level of a categorical covariate, and one for each numeric covariate.
    """
    return [
        [
            _effect(covariate, each),
            *_cells(regression, each, place == 0 and len(covariate.levels) > 1),
        ]
        for covariate in regression.covariates
        for place, each in enumerate(covariate.levels)
    ]


def _intercept(regression: Regression) -> dict[str, str]:
    """Returns the table row on the intercept."""
    shown = decimal if regression.ratio else _plain
    error = shown(regression.intercept_error)
    return {"intercept": f"{shown(regression.intercept)}, standard error {error}"}


def _effect(covariate: CovariateEstimate, each: LevelEstimate) -> str:
    """Returns "smoker = yes" for a categorical covariate's level, else "age, per unit"."""
    name = visible(covariate.covariate)
    return f"{name} = {visible(each.level)}" if each.level else f"{name}, per unit"


def _cells(regression: Regression, each: LevelEstimate, reference: bool) -> list[str]:
    """Returns the cells of a level's line after its name; `reference` marks the reference level."""
    crude, ratio = each.crude, bool(regression.ratio)
    counted = (
        []
        if crude is None
        else [
            estimated_count(crude.clients),
            decimal(crude.proportion),
            f"{decimal(crude.low)} to {decimal(crude.high)}",
        ]
    )
    if reference and each.coefficient is not None:
        return [*counted, "reference", "", *(["1"] if ratio else []), "", ""]
    of_level = ratio and bool(each.level)
    shown, effect = (_ratio, decimal) if of_level else (_plain, _plain)
    return [
        *counted,
        effect(each.coefficient),
        effect(each.standard_error),
        *([shown(each.ratio)] if ratio else []),
        "—" if each.low is None else f"{shown(each.low)} to {shown(each.high)}",
        _p_value(each.p_value),
    ]


def _plain(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"


def _ratio(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:.2f}" if 0.1 <= value < 100.0 else f"{value:.3g}"


def _tail(value: float | None) -> str:
    """Formats a p-value with its name: "p = 0.02", "p < 0.0001"."""
    shown = _p_value(value)
    return f"p {shown}" if shown.startswith("<") else f"p = {shown}"


def _p_value(value: float | None) -> str:
    return "—" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def _facts(release: RegressionRelease) -> dict[str, str]:
    """Returns tests, intercept, outcome, counts, noise and any warning as texts by label."""
    regression, facts = release.regression, {}
    if regression.reason:
        facts["no estimate"] = regression.reason
    for each in regression.covariates:
        if regression.reason or (len(each.levels) == 1 and each.statistic is not None):
            continue  # the test of a number is that of its coefficient
        facts[f"test of {visible(each.covariate)}"] = (
            "no estimate: the counts are too close to their noise"
            if each.statistic is None
            else f"chi-squared {each.statistic:.3g}, {each.degrees} df, {_tail(each.p_value)}"
        )
    occurred = ", ".join(map(visible, release.occurred))
    if regression.dispersion is not None:
        spread = "dispersion" if regression.ratio else "residual variance"
        facts[spread] = _plain(regression.dispersion)
    exposure = f", per {visible(release.exposure)}" if release.exposure else ""
    if regression.warning:
        facts["warning"] = regression.warning
    return facts | {
        **_intercept(regression),
        "outcome": f"{visible(release.outcome)}{f' = {occurred}' if occurred else exposure}",
        "clients": f"{estimated_count(release.clients)}; {estimated_count(release.unusable)} "
        "without a usable entry",
        "noise": f"standard deviation {release.noise:.3g} on each "
        f"{'cell' if release.counts else 'scaled sum of a round'}; intervals contain it",
    }


def regression_chapter(release: RegressionRelease) -> Chapter:
    """Returns the page's chapter on a regression: forest plot of ratios, estimates, and tests."""
    ratio = release.regression.ratio
    title = f"{ratio.capitalize() or 'Coefficient'}s"
    words = (
        f"{title} of a {FAMILIES[release.regression.family].label} regression on main effects. "
        "They follow from noised sums over clients, and intervals and tests contain both sampling "
        "and noise."
    )
    if release.counts:
        words += " Proportions are crude: they are not adjusted for the other covariates."
    head, lines = _head(release), _lines(release.regression)
    columns = frozenset(range(1, len(head)))
    return Chapter(
        "regression",
        title,
        [
            Paragraph(words),
            *([_picture(release)] if ratio else []),
            Figures(f"{title} relative to reference levels", head, lines, columns),
            Facts(_facts(release)),
        ],
    )


def _picture(release: RegressionRelease) -> Picture:
    """Draws the ratio of each level with its interval, on a logarithmic axis."""
    ratio = release.regression.ratio
    title = f"{ratio.capitalize()}s of {release.outcome} with 95 % intervals"
    shown = _drawn(release)
    with (
        without_warnings(),
        canvas(1, 1, (4.8, 0.8 + 0.24 * len(shown))) as (figure, ((panel,),)),
    ):
        panel.set_xscale("log")
        panel.axvline(1.0, color="#888888", lw=0.8)
        for place, (_, each) in enumerate(shown):
            if each.ratio is not None:
                ends = [each.low or each.ratio, each.high or each.ratio]
                panel.plot(ends, [place, place], color=COLOURS[0], lw=1.4)
                panel.plot(each.ratio, place, "s", color=COLOURS[0], ms=4)
        _set_ticks(panel)
        panel.set_yticks(range(len(shown)), [name for name, _ in shown])
        panel.set(xlabel=ratio, ylim=(len(shown) - 0.5, -0.5))
        panel.grid(visible=False, axis="y")
        drawn = as_svg(figure)
    texts = (
        f"{name}: {with_interval(each.ratio, each.low, each.high, missing='none')}"
        for name, each in shown
    )
    return Picture(inline(drawn, "regression", title, f"{'; '.join(texts)}."), title)


def _set_ticks(panel: Axes) -> None:
    """Labels the logarithmic axis with plain numbers, with more of them for a shorter range."""
    low, high = panel.get_xlim()
    decades = math.log10(high / low)
    within = ((0.4, (1.0, 1.2, *range(2, 10))), (1.0, (1.0, 1.5, 2, 3, 5, 7)), (2.0, (1, 2, 5)))
    steps = next((each for most, each in within if decades < most), (1,))
    panel.xaxis.set_major_locator(LogLocator(subs=steps))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_locator(NullLocator())


def _drawn(release: RegressionRelease) -> Sequence[tuple[str, LevelEstimate]]:
    """Returns the name and the estimate of each level, in the order of the covariates."""
    return [
        (_effect(covariate, each), each)
        for covariate in release.regression.covariates
        for each in covariate.levels
    ]
