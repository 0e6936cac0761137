"""The command `privfed regress`: regressions over a federation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
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
    print_answer,
    print_release,
    quotes_on_request,
    refuse_new_options,
)
from privfed.core.errors import Refused


@click.command("regress")
@click.argument("run_files", metavar="RUN.toml|RUN_DIR…", type=ANY_PATH, nargs=-1, required=True)
@OVERRIDES
@click.option("--outcome", default="", help="The column of outcomes.")
@click.option(
    "--family",
    type=click.Choice(["logistic", "linear", "poisson"]),
    default="logistic",
    show_default=True,
    help="logistic: outcomes that occurred or not; linear: numbers; poisson: counts.",
)
@click.option(
    "--occurred",
    multiple=True,
    help="If logistic: an entry of the outcome's column that states the outcome; may be repeated; "
    "default: 1.",
)
@click.option(
    "--by",
    multiple=True,
    help="A column of a covariate, as [data.categories] or [data.features] declares it; repeat it "
    "for each.",
)
@click.option(
    "--cut",
    "cuts",
    multiple=True,
    metavar="COLUMN=a,b,…",
    help="To cut a covariate of numbers: ends of its bins [a, b), in ascending order.",
)
@click.option("--exposure", default="", help="If poisson: the column of exposures (time at risk).")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    help="Number of rounds, if logistic on numbers or poisson; default: 8.",
)
@click.option(
    "--random-effects",
    is_flag=True,
    help="For several run directories: sites may have different coefficients.",
)
@RELEASE_EPSILON
@RELEASE_DELTA
@NEW_RUN
@RELEASE_RUN_FILE
@JSON
@quotes_on_request
def regress_command(run_files: tuple[Path, ...], **asked: Any) -> int:
    """Release sums of an outcome and covariates, charged by round, and estimate a regression.

    Prints coefficients, odds or rate ratios, and tests of main effects. All intervals and tests
    contain the noise. If RUN.toml is a run directory, it is only read again. Several run
    directories, one of each site, are combined by meta-analysis.
    """
    from privfed.analytics.regression.release import RegressionRequest
    from privfed.api.regression import regression

    if len(run_files) > 1:
        refuse_new_options("random_effects")
        pooled = regression(run_files, random_effects=asked["random_effects"])
        return print_answer(pooled, bool(asked["as_json"]))
    if asked.pop("random_effects"):
        raise Refused("--random-effects combines run directories; name that of each site")
    asked |= {
        "run_file": run_files[0],
        "cuts": _cuts(asked["cuts"]),
    }
    return print_release(regression, RegressionRequest, "regression", asked)


def _cuts(stated: Iterable[str]) -> dict[str, list[float]]:
    """Returns the boundaries of bins, in the stated order, by column.

    Raises `Refused` unless each text is COLUMN=a,b,… with numbers, and each column occurs once.
    """
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
