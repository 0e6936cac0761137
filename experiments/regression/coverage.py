"""Coverage of 95 % intervals and size of tests of `privfed.analytics.regression`, by simulation.

`python -m experiments.regression.coverage [repetitions]` writes coverage.csv and prints it. Clients
have three independent covariates with 2, 2 and 3 levels, and an outcome with the odds of a logistic
model.
"""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.survival.coverage import noise
from privfed.analytics.regression.logistic import (
    LogisticRegression,
    OutcomeCounts,
    logistic_regression,
)

Reals = NDArray[np.float64]
CLIENTS, EPSILONS = (1_000, 2_000, 10_000), (0.5, 1.0, 2.0, np.inf)
SHARES = (0.5, 0.5), (0.6, 0.4), (0.5, 0.3, 0.2)
EFFECTS = (0.0, 0.5), (0.0, -0.3), (0.0, 0.4, 0.8)


@dataclass(frozen=True)
class Design:
    """A logistic model with an `intercept` and the `effects` of each covariate's levels."""

    name: str
    intercept: float
    effects: tuple[tuple[float, ...], ...] = EFFECTS

    @property
    def truth(self) -> Reals:
        """The coefficients: intercept, and levels except references."""
        return np.array([self.intercept, *(each for levels in self.effects for each in levels[1:])])

    def sampled(self, clients: int, std: float, rng: np.random.Generator) -> OutcomeCounts:
        """Returns a noised table of `clients`."""
        share = np.multiply.outer(np.multiply.outer(SHARES[0], SHARES[1]), SHARES[2])
        logit = self.intercept + sum(np.ix_(*map(np.array, self.effects)))
        p = 1 / (1 + np.exp(-logit))
        cells = np.stack([share * p, share * (1 - p)])
        counts = rng.multinomial(clients, cells.ravel() / cells.sum()).reshape(cells.shape)
        noised = counts + std * rng.standard_normal(cells.shape)
        levels = tuple(tuple(map(str, range(len(each)))) for each in SHARES)
        return OutcomeCounts(("a", "b", "c"), levels, noised[0], noised[1], std)


DESIGNS = Design("common", -1.0), Design("rare", -2.5)


@dataclass(frozen=True)
class Row:
    """Results of a setting.

    `least`, `mean` and `most` are coverage over coefficients that have estimates, and
    `ignoring_noise` is the least coverage if noise is ignored. `estimated` is the least share of
    tables with an estimate. `bias` is the largest median bias of a coefficient, `error` the
    median standard error relative to that without noise. `size` is the share of p-values below 5 %
    of the joint test of a covariate without effect, and `power` that with its effect.
    """

    design: str
    clients: int
    epsilon: float
    std: float
    least: float
    mean: float
    most: float
    ignoring_noise: float
    estimated: float
    bias: float
    error: float
    size: float
    power: float


def coefficients(regression: LogisticRegression) -> Reals:
    """Returns coefficients and standard errors `[2, k]`, intercept first; NaN without estimate."""
    levels = [each for covariate in regression.covariates for each in covariate.levels[1:]]
    estimates = [regression.intercept, *(each.coefficient for each in levels)]
    errors = [regression.intercept_error, *(each.standard_error for each in levels)]
    return np.array([estimates, errors], dtype=np.float64)


def result(design: Design, clients: int, epsilon: float, repeats: int, seed: int = 0) -> Row:
    """Returns the results of a setting."""
    rng, std = np.random.default_rng(seed), noise(epsilon)
    without = replace(design, effects=(*design.effects[:2], (0.0, 0.0, 0.0)))
    rows, ignoring, exact, power, size = [], [], [], [], []
    for _ in range(repeats):
        counts = design.sampled(clients, std, rng)
        regression = logistic_regression(counts)
        rows.append(coefficients(regression))
        ignoring.append(coefficients(logistic_regression(replace(counts, std=0.0))))
        exact.append(coefficients(logistic_regression(design.sampled(clients, 0.0, rng)))[1])
        power.append(regression.covariates[2].p_value)
        null = logistic_regression(without.sampled(clients, std, rng))
        size.append(null.covariates[2].p_value)
    stated, naive, truth = np.array(rows), np.array(ignoring), design.truth
    coverage = covered(stated, truth)
    return Row(
        design.name,
        clients,
        epsilon,
        std,
        least=float(coverage.min()),
        mean=float(coverage.mean()),
        most=float(coverage.max()),
        ignoring_noise=float(covered(naive, truth).min()),
        estimated=float((~np.isnan(stated[:, 0])).mean(0).min()),
        bias=float(np.abs(np.nanmedian(stated[:, 0], axis=0) - truth).max()),
        error=float((np.nanmedian(stated[:, 1], 0) / np.nanmedian(exact, 0)).max()),
        size=rejected(size),
        power=rejected(power),
    )


def covered(estimates: Reals, truth: Reals) -> Reals:
    """Returns the coverage of each coefficient, of estimates and errors `[r, 2, k]`."""
    inside = np.abs(estimates[:, 0] - truth) <= 1.96 * estimates[:, 1]
    known = ~np.isnan(estimates[:, 0])
    return np.asarray((inside & known).sum(0) / np.maximum(known.sum(0), 1))


def rejected(p_values: list[float | None]) -> float:
    """Returns the share of p-values below 5 %, of those that exist."""
    known = [each for each in p_values if each is not None]
    return float(np.mean([each < 0.05 for each in known])) if known else 0.0


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    names = [field.name for field in fields(Row)]
    print(" ".join(names))
    written = Path(__file__).parent / "coverage.csv"
    with written.open("w", encoding="utf-8", newline="") as file, ProcessPoolExecutor() as pool:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(names)
        settings = zip(*product(DESIGNS, CLIENTS, EPSILONS, (repeats,)), strict=True)
        for row in pool.map(result, *settings):
            stated = [f"{each:.4g}" if isinstance(each, float) else each for each in astuple(row)]
            out.writerow(stated)
            print(" ".join(map(str, stated)), flush=True)


if __name__ == "__main__":
    main()
