"""Meta-analysis of regressions that sites released separately.

Each site releases its own regression (`privfed regress` on its own table, with its own noise and
ledger), and this module combines the estimates. No secure sum is needed, but every site adds as
much noise as all sites together would add under one. Estimates t_i with variances v_i, of sampling
and noise, are combined by the weights w_i = 1 / (v_i + tau^2):

  t = sum_i w_i t_i / sum_i w_i, with variance 1 / sum_i w_i.

The common-effect estimate has tau = 0. The random-effects estimate has the tau of DerSimonian and
Laird (1986), and the variance of Hartung and Knapp (2001), at least the one above, with Student's
t, as few sites need. Heterogeneity is Cochran's Q, the sum of (t_i - t)^2 / v_i at tau = 0, and I^2
(Higgins & Thompson 2002).

*Guarantee.* Nothing is released here. A client with rows in one release alone has the guarantee of
that release, at most the largest epsilon (parallel composition, McSherry 2009). A client with rows
in all of them has that of their composition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import chi2, norm, t

from accounting.documents import Encoded
from accounting.guarantee import Guarantee, guarantee
from accounting.ledger import Ledger
from privfed.analytics.regression.estimates import (
    CovariateEstimate,
    LevelEstimate,
    Regression,
    wald,
)
from privfed.analytics.regression.release import RegressionRelease, regression_of
from privfed.analytics.tree import Reals
from privfed.core.errors import Refused
from privfed.plan.prior_spending import total
from privfed.store.run_directory import RunDirectory


@dataclass(frozen=True)
class Heterogeneity(Encoded):
    """Differences of one coefficient between sites, beyond those from sampling and noise.

    Attributes:
      sites: number of sites with an estimate.
      q: Cochran's Q; 0 with fewer than two estimates.
      p_value: p-value of all sites having the same coefficient; None with fewer than two estimates.
      i_squared: fraction of the variation between estimates that sampling and noise do not explain.
    """

    sites: int
    q: float
    p_value: float | None
    i_squared: float


@dataclass(frozen=True)
class PooledRegression(Encoded):
    """A meta-analysis of regressions that sites released separately.

    Attributes:
      runs: the run directories of the releases.
      outcome: the column of outcomes.
      random_effects: whether sites may have different coefficients.
      clients: estimated number of usable clients, of all sites together.
      regression: the combined estimates. A covariate with three or more levels has no joint test.
      heterogeneity: heterogeneity of coefficients, by covariate and level ("" for a number).
      guarantee: the guarantee with the largest epsilon of a single release; for clients with rows
        in one release.
      together: the guarantee of all releases composed; for clients with rows in all of them.
      note: the reason why a release's epsilon is nominal (of the first such release); None if
        there is no such release.
    """

    runs: tuple[str, ...]
    outcome: str
    random_effects: bool
    clients: float
    regression: Regression
    heterogeneity: dict[str, dict[str, Heterogeneity]]
    guarantee: Guarantee
    together: Guarantee
    note: str | None = None


def pooled_regression(paths: Sequence[Path], random_effects: bool = False) -> PooledRegression:
    """Returns the meta-analysis of the regressions that the runs at `paths` released.

    No client's data are read. `random_effects` selects the random-effects estimate; the default is
    the common-effect estimate.

    Raises:
      Refused: if a run is not one of `privfed regress`; if two runs estimate different coefficients
        or have the same population; or if they differ in delta, adversary, unit of privacy or
        adjacency relation.
    """
    releases = [regression_of(path) for path in paths]
    _refuse_others(paths)
    (first, *_) = releases
    covariates, differences = [], dict[str, dict[str, Heterogeneity]]()
    for place, covariate in enumerate(first.regression.covariates):
        of_sites = [each.regression.covariates[place] for each in releases]
        stated, about = _covariate(covariate, of_sites, first.regression, random_effects)
        covariates.append(stated)
        differences[covariate.covariate] = about
    stated_intercepts = [
        (each.regression.intercept, each.regression.intercept_error) for each in releases
    ]
    intercept, error, _ = _combined(*_known(stated_intercepts), random_effects)
    regression = replace(
        first.regression,
        intercept=intercept,
        intercept_error=error,
        covariates=tuple(covariates),
        dispersion=None,
        reason="" if intercept is not None else _each(each.regression.reason for each in releases),
        warning=_each(each.regression.warning for each in releases),
    )
    return PooledRegression(
        tuple(map(str, paths)),
        first.outcome,
        random_effects,
        sum(each.clients for each in releases),
        regression,
        differences,
        *_guarantees(releases, paths),
        note=next((each.note for each in releases if each.note), None),
    )


def _each(texts: Iterable[str]) -> str:
    """Returns the distinct nonempty `texts`, separated by semicolons."""
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _refuse_others(paths: Sequence[Path]) -> None:
    """Raises `Refused` unless the runs estimate the same coefficients, by different releases over
    different populations.
    """
    runs, populations = dict[str, Path](), dict[str, Path]()
    asked = None
    for path in paths:
        directory = RunDirectory.open(path)
        config, opening = directory.config.read(), Ledger.load(directory.ledger).trail()[1].hash
        if (same := runs.setdefault(opening, path)) is not path:
            raise Refused(f"{path} and {same} are one release; name the run of each site once")
        name = config.data.population
        if (same := populations.setdefault(name, path)) is not path:
            raise Refused(
                f"{path} and {same} are releases over one population, {name!r}, so that clients "
                "would count twice; name releases over different populations"
            )
        keys = {key: getattr(config.source, key, None) for key in _SAME}
        if keys != (asked := asked or keys):
            key = next(key for key in _SAME if keys[key] != asked[key])
            raise Refused(
                f"{path} estimates other coefficients than {paths[0]}: its {key} is {keys[key]!r}, "
                f"not {asked[key]!r}; make both releases with the same columns, levels and ranges"
            )


_SAME = (
    *("outcome", "occurred", "covariates", "levels", "cuts"),
    *("family", "bounds", "outcome_bounds", "exposure", "exposure_bounds"),
)
"""The keys of [data] that determine the coefficients of a release."""


def _guarantees(
    releases: Sequence[RegressionRelease], paths: Sequence[Path]
) -> tuple[Guarantee, Guarantee]:
    """Returns the single release's guarantee with the largest epsilon, and that of all composed.

    Raises:
      Refused: if the releases differ in delta, adversary, unit of privacy or adjacency relation.
    """
    bounds = [release.guarantee for release in releases]
    largest = max(bounds, key=lambda bound: bound.epsilon)
    kinds = {(each.delta, each.against, each.unit, each.relation) for each in bounds}
    if len(kinds) > 1:
        raise Refused(
            "the releases have no common guarantee: they differ in delta, adversary, unit or "
            "adjacency relation; make them by the same mechanism, sampler and delta"
        )
    spent = total(Ledger.load(RunDirectory.open(path).ledger).spending for path in paths)
    caveat = next((each.caveat for each in bounds if each.caveat), "")
    together = guarantee(spent, largest.delta)
    return largest, replace(together, against=largest.against, caveat=caveat)


def _covariate(
    covariate: CovariateEstimate,
    of_sites: Sequence[CovariateEstimate],
    regression: Regression,
    random_effects: bool,
) -> tuple[CovariateEstimate, dict[str, Heterogeneity]]:
    """Returns the combined estimates for a covariate, and their heterogeneity by level.

    `covariate` provides names, and `regression` whether ratios are stated.
    """
    levels, differences = [], dict[str, Heterogeneity]()
    several = len(covariate.levels) > 1
    for place, level in enumerate(covariate.levels):
        if several and place == 0:
            levels.append(replace(level, crude=None, coefficient=0.0))
            continue
        at = (site.levels[place] for site in of_sites)
        known = _known([(each.coefficient, each.standard_error) for each in at])
        coefficient, error, tail = _combined(*known, random_effects)
        differences[level.level] = _heterogeneity(*known)
        levels.append(_stated(level.level, coefficient, error, tail, bool(regression.ratio)))
    alone = levels[-1] if len(levels) <= 1 + several else None
    p_value = alone.p_value if alone else None
    statistic = None
    if not random_effects and alone and alone.coefficient is not None and alone.standard_error:
        statistic = (alone.coefficient / alone.standard_error) ** 2
    stated = CovariateEstimate(
        covariate.covariate, tuple(levels), statistic, max(1, len(levels) - 1), p_value
    )
    return stated, differences


def _known(estimates: Sequence[tuple[float | None, float | None]]) -> tuple[Reals, Reals]:
    """Returns the estimates and variances of the m sites that have an estimate, both `[m]`.

    Args:
      estimates: each site's estimate and standard error. A site has none if one of them is None or
        the error is 0.
    """
    known = [(value, error**2) for value, error in estimates if value is not None and error]
    values, variances = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return values, variances


def _heterogeneity(values: Reals, variances: Reals) -> Heterogeneity:
    """Returns the heterogeneity of estimates, given their variances."""
    if len(values) < 2:
        return Heterogeneity(len(values), 0.0, None, 0.0)
    weights = 1.0 / variances
    q = float((weights * (values - np.average(values, weights=weights)) ** 2).sum())
    free = len(values) - 1
    return Heterogeneity(
        len(values), q, float(chi2.sf(q, free)), max(0.0, 1.0 - free / q) if q else 0.0
    )


def _combined(
    values: Reals, variances: Reals, random_effects: bool
) -> tuple[float | None, float | None, float]:
    """Returns the combined estimate, its standard error, and the degrees of freedom of its error.

    The first two are None without an estimate; infinite degrees of freedom mean a normal error.
    """
    count = len(values)
    if not count or (random_effects and count < 2):
        return None, None, math.inf
    weights = 1.0 / variances
    if not random_effects:
        return float(np.average(values, weights=weights)), float(weights.sum() ** -0.5), math.inf
    q = _heterogeneity(values, variances).q
    spread = float(weights.sum() - (weights**2).sum() / weights.sum())
    weights = 1.0 / (variances + max(0.0, (q - count + 1) / spread))
    mean = float(np.average(values, weights=weights))
    scale = float((weights * (values - mean) ** 2).sum()) / (count - 1)
    return mean, math.sqrt(max(scale, 1.0) / float(weights.sum())), count - 1.0


def _stated(
    level: str, coefficient: float | None, error: float | None, free: float, ratio: bool
) -> LevelEstimate:
    """Returns the combined estimate of a level with interval and p-value, at `free` degrees of
    freedom.
    """
    if coefficient is None or error is None:
        return LevelEstimate(level)
    return wald(level, coefficient, error, ratio, norm if math.isinf(free) else t(free))
