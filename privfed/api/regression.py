"""The function `privfed.regression`, which releases the sums of a regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

from privfed.api.answer import Answer, as_path, from_here
from privfed.core.errors import Refused


def regression(
    run: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    outcome: str = "",
    by: Sequence[str] = (),
    cuts: Mapping[str, Sequence[float]] | None = None,
    occurred: Sequence[str | int | bool] = (),
    family: str = "logistic",
    exposure: str = "",
    rounds: int | None = None,
    random_effects: bool = False,
    epsilon: float | None = None,
    delta: float | None = None,
    out: str | PathLike[str] | None = None,
    keys: Sequence[str] = (),
) -> Answer:
    """Releases the sums of a regression over all clients, as `privfed regress` does.

    Each round is one charge in the ledger of the release.

    Args:
      run: a run file that describes the population; or the directory of an earlier release, which
        is only read again; or a list of such directories, one of each site, which are combined.
      outcome: the column of outcomes; [data.features] declares its range if it is a number.
      by: the columns of covariates. [data.categories] declares the values of levels, of which the
        first is the reference, and [data.features] the range of numbers.
      cuts: for covariates that are numbers: the ends of the bins [a, b), ascending, by column.
      occurred: entries of `outcome` that state the outcome, if `family` is "logistic"; by default
        the entry 1.
      family: "logistic" for outcomes that occurred or not, "linear" for numbers, "poisson" for
        counts.
      exposure: for counts: the column of exposures, such as a time at risk, whose range
        [data.features] declares.
      rounds: number of rounds of logistic regression on numbers and of Poisson regression; None:
        8.
      random_effects: for several directories: whether sites may have different coefficients.
      epsilon: epsilon of the release; None: the share `budget.statistics` of the run file.
      delta: delta of the release; None: that of the run file.
      out: the new run directory; by default a new folder in runs/.
      keys: keys of the run file to change, as "section.key=value".

    Returns:
      The `regression` with coefficients, ratios and tests of each covariate, and the `guarantee`.
      For several directories, also how much sites differ (`heterogeneity`), and the guarantee of
      all releases `together`.

    Raises:
      Refused: if the release has no proof, or a column's levels or range are not declared.
    """
    from privfed.analytics.regression.release import RegressionRequest, regression_of
    from privfed.analytics.release import make_release
    from privfed.report.regression import regression_tables
    from privfed.store.folders import new_folder

    if not isinstance(run, str | PathLike):
        from privfed.analytics.regression.pooled import pooled_regression
        from privfed.report.regression import pooled_tables

        paths = [from_here(as_path(each, "run")) for each in run]
        return Answer.of(pooled_regression(paths, random_effects), pooled_tables)
    path = from_here(as_path(run, "run"))
    if path.is_dir():
        return Answer.of(regression_of(path).write(), regression_tables)
    if isinstance(by, str):
        raise Refused(f"by is {by!r}; expected a list of covariates")
    ends = {column: tuple(map(float, edges)) for column, edges in (cuts or {}).items()}
    asking = RegressionRequest(
        outcome, tuple(by), ends, tuple(occurred), family, exposure, rounds, epsilon, delta
    )
    folder = new_folder("regression") if out is None else from_here(as_path(out, "out"))
    make_release(path, keys, asking, folder)
    return Answer.of(regression_of(folder).write(), regression_tables)
