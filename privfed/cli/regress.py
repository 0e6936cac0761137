"""The command `privfed regress`: logistic regression over a federation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from privfed.cli.answering import (
    ANY_PATH,
    JSON,
    NEW_RUN,
    OVERRIDES,
    RELEASE_DELTA,
    RELEASE_EPSILON,
    RELEASE_RUN_FILE,
    print_release,
    quotes_on_request,
)
from privfed.core.errors import Refused


@click.command("regress")
@click.argument("run_file", metavar="RUN.toml", type=ANY_PATH)
@OVERRIDES
@click.option("--outcome", default="", help="The column that states whether the outcome occurred.")
@click.option(
    "--occurred",
    multiple=True,
    help="An entry of the outcome's column that states the outcome; may be repeated; default: 1.",
)
@click.option(
    "--by",
    multiple=True,
    help="A column of a covariate, as [data.categories] declares it; repeat it for each.",
)
@click.option(
    "--cut",
    "cuts",
    multiple=True,
    metavar="COLUMN=a,b,…",
    help="For a covariate of numbers: ends of its bins [a, b), in ascending order.",
)
@RELEASE_EPSILON
@RELEASE_DELTA
@NEW_RUN
@RELEASE_RUN_FILE
@JSON
@quotes_on_request
def regress_command(**asked: Any) -> int:
    """Release an outcome's counts by covariates, charged once, and estimate odds ratios from them.

    Prints a logistic regression on main effects. All intervals and tests contain the noise. If
    RUN.toml is a run directory, it is only read again.
    """
    from privfed.analytics.regression.release import RegressionRequest
    from privfed.api.regression import regression

    asked |= {"cuts": _cuts(asked["cuts"]), "occurred": asked["occurred"] or (1,)}
    return print_release(regression, RegressionRequest, "regression", asked)


def _cuts(stated: Iterable[str]) -> dict[str, list[float]]:
    """Returns the ends of bins by column. Raises `Refused` unless each is COLUMN=a,b,…"""
    cuts: dict[str, list[float]] = {}
    for cut in stated:
        column, _, edges = cut.rpartition("=")
        if not column or column in cuts:
            raise Refused(f"--cut is {cut!r}; expected COLUMN=a,b,…, once for each column")
        try:
            cuts[column] = [float(edge) for edge in edges.split(",")]
        except ValueError:
            raise Refused(f"--cut is {cut!r}; expected COLUMN=a,b,… with numbers") from None
    return cuts
