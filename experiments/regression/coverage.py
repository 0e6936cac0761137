"""Coverage of 95 % intervals and size of tests of `privfed.analytics.regression`, by simulation.

`python -m experiments.regression.coverage [repetitions]` writes coverage.csv and prints it. In the
designs of levels, clients have three independent covariates with 2, 2 and 3 levels, and an outcome
with the odds of a logistic model. In the designs of numbers, clients have covariates with 2 and 3
levels and two numbers.
"""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.survival.coverage import noise
from privfed.analytics.regression.estimates import Regression
from privfed.analytics.regression.family import FAMILIES
from privfed.analytics.regression.logistic import OutcomeCounts, logistic_regression
from privfed.analytics.regression.release import estimated_regression, score_sums
from privfed.analytics.regression.score_model import Newton, ScoreModel
from privfed.analytics.regression.score_table import (
    Covariate,
    CovariateCorners,
    CovariateNumber,
    ScoreColumns,
)
from privfed.analytics.regression.table import CovariateLevels

Reals = NDArray[np.float64]
CLIENTS, EPSILONS = (1_000, 2_000, 10_000), (0.5, 1.0, 2.0, np.inf)
SHARES = (0.5, 0.5), (0.6, 0.4), (0.5, 0.3, 0.2)
EFFECTS = (0.0, 0.5), (0.0, -0.3), (0.0, 0.4, 0.8)


class Sampled(Protocol):
    """Noised sums of clients."""

    def regression(self, ignoring_noise: bool = False) -> Regression:
        """Returns the estimates."""


class AnyDesign(Protocol):
    """A model from which clients are sampled."""

    @property
    def name(self) -> str: ...

    @property
    def truth(self) -> Reals:
        """The coefficients: intercept, and levels except references."""

    @property
    def without_effect(self) -> AnyDesign:
        """The same model, without an effect of the covariate `tested`."""

    @property
    def tested(self) -> int:
        """The covariate whose joint test is counted."""

    def sampled(self, clients: int, std: float, rng: np.random.Generator) -> Sampled:
        """Returns noised sums of `clients`; `std` is the noise of a single release."""


@dataclass(frozen=True)
class Cells:
    """A noised table."""

    counts: OutcomeCounts

    def regression(self, ignoring_noise: bool = False) -> Regression:
        stated = replace(self.counts, std=0.0) if ignoring_noise else self.counts
        return logistic_regression(stated)


@dataclass(frozen=True)
class Design:
    """A logistic model with an `intercept` and the `effects` of each covariate's levels."""

    name: str
    intercept: float
    effects: tuple[tuple[float, ...], ...] = EFFECTS

    tested: int = 2

    @property
    def without_effect(self) -> Design:
        return replace(self, effects=(*self.effects[:2], (0.0, 0.0, 0.0)))

    @property
    def truth(self) -> Reals:
        return np.array([self.intercept, *(each for levels in self.effects for each in levels[1:])])

    def sampled(self, clients: int, std: float, rng: np.random.Generator) -> Cells:
        share = np.multiply.outer(np.multiply.outer(SHARES[0], SHARES[1]), SHARES[2])
        logit = self.intercept + sum(np.ix_(*map(np.array, self.effects)))
        p = 1 / (1 + np.exp(-logit))
        cells = np.stack([share * p, share * (1 - p)])
        counts = rng.multinomial(clients, cells.ravel() / cells.sum()).reshape(cells.shape)
        noised = counts + std * rng.standard_normal(cells.shape)
        levels = tuple(tuple(map(str, range(len(each)))) for each in SHARES)
        return Cells(OutcomeCounts(("a", "b", "c"), levels, noised[0], noised[1], std))


@dataclass(frozen=True)
class Scores:
    """Noised sums of score and information, after the last round."""

    family: str
    columns: ScoreColumns
    newton: Newton
    state: dict[str, Reals]
    std: float

    def regression(self, ignoring_noise: bool = False) -> Regression:
        std = 0.0 if ignoring_noise else self.std
        sums, _ = score_sums(self.state, self.newton, 1.0, std)
        return estimated_regression(self.family, self.columns, sums)


@dataclass(frozen=True)
class NumberDesign:
    """A generalized linear model of two covariates with levels and two numbers.

    Attributes:
      name: a name.
      family: the family of outcomes; linear outcomes have residuals of standard deviation 15, and
        the exposures of counts are uniform between 0.5 and 3.
      intercept: the intercept.
      arm: effect of the second level of two.
      ward: effects of three levels.
      slopes: effects of one more unit of the two numbers.
      bounds: the public range of outcomes.
    """

    name: str
    family: str
    intercept: float
    arm: float
    ward: tuple[float, float, float]
    slopes: tuple[float, float]
    bounds: tuple[float, float] = (0.0, 1.0)
    tested: int = 1

    @property
    def without_effect(self) -> NumberDesign:
        return replace(self, ward=(0.0, 0.0, 0.0))

    @property
    def truth(self) -> Reals:
        return np.array([self.intercept, self.arm, *self.ward[1:], *self.slopes])

    @property
    def columns(self) -> ScoreColumns:
        """The columns of the regression."""
        covariates: tuple[Covariate, ...] = (
            CovariateCorners(CovariateLevels("arm", ("0", "1"))),
            CovariateCorners(CovariateLevels("ward", ("0", "1", "2"))),
            CovariateNumber("age", 25.0, 90.0),
            CovariateNumber("bmi", 15.0, 40.0),
        )
        family = FAMILIES[self.family]
        exposed = ("years", (0.5, 3.0)) if family.exposed else ("", (1.0, 1.0))
        return ScoreColumns(family, "y", ("1",), self.bounds, covariates, *exposed)

    def sampled(self, clients: int, std: float, rng: np.random.Generator) -> Scores:
        columns, family = self.columns, FAMILIES[self.family]
        rounds = 1 if family.linear else family.burn_in + 4
        keys = {
            "family": self.family,
            "coefficients": columns.coefficients,
            "squared_norm": 1.0 + len(columns.covariates),
            "most": columns.most,
        }
        module = ScoreModel.model_validate(keys).build((columns.coefficients + 3,), 1).double()
        newton = Newton.model_validate({**keys, "burn_in": family.burn_in})
        (sums,) = module.parameters()
        params, x = sums.detach().clone(), torch.from_numpy(self._inputs(columns, clients, rng))
        state = newton.init(params)
        for _ in range(rounds):
            sums.data = params
            (added,) = torch.autograd.grad(module(x).sum(), sums)
            noised = rng.standard_normal(len(added)) * std * np.sqrt(rounds)
            params, state = newton.step(params, added + torch.from_numpy(noised), state)
        stated = {name: each.numpy() for name, each in state.items()}
        return Scores(self.family, columns, newton, stated, std * np.sqrt(rounds))

    def _inputs(self, columns: ScoreColumns, clients: int, rng: np.random.Generator) -> Reals:
        """Returns the model's inputs for clients that are sampled, shape `[clients, k + 3]`."""
        arm, ward = rng.integers(0, 2, clients), rng.choice(3, clients, p=(0.5, 0.3, 0.2))
        age, bmi = rng.uniform(25, 90, clients), rng.normal(26, 4, clients).clip(15, 40)
        eta = self.intercept + self.arm * arm + np.array(self.ward)[ward]
        eta += self.slopes[0] * age + self.slopes[1] * bmi
        exposure = rng.uniform(0.5, 3, clients) if columns.exposure else np.ones(clients)
        if columns.family.named:
            y = (rng.random(clients) < 1 / (1 + np.exp(-eta))).astype(float)
        elif columns.family.linear:
            low, high = self.bounds
            y = ((eta + rng.normal(0, 15, clients)).clip(low, high) - low) / (high - low) * 2 - 1
        else:
            y = rng.poisson(exposure * np.exp(eta)).clip(max=self.bounds[1]).astype(float)
        corners = [
            each.corners for each in columns.covariates if isinstance(each, CovariateCorners)
        ]
        numbers = [(age - 57.5) / 32.5, (bmi - 27.5) / 12.5]
        offset = np.log(exposure / columns.exposures[1])
        parts = [np.ones((clients, 1)), corners[0][arm], corners[1][ward]]
        return np.column_stack([*parts, *numbers, y, offset, np.zeros(clients)])


DESIGNS = Design("common", -1.0), Design("rare", -2.5)
NUMBER_DESIGNS = (
    NumberDesign("numbers, logistic", "logistic", -3.7, -0.5, (0.0, 0.4, 0.8), (0.03, 0.04)),
    NumberDesign(
        "numbers, linear", "linear", 72.0, -4.0, (0.0, 3.0, 6.0), (0.4, 1.0), (80.0, 180.0)
    ),
    NumberDesign(
        "numbers, poisson", "poisson", -1.6, -0.4, (0.0, 0.3, 0.6), (0.01, 0.01), (0.0, 8.0)
    ),
)


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


def coefficients(regression: Regression) -> Reals:
    """Returns coefficients and standard errors `[2, k]`, intercept first; NaN without estimate."""
    levels = [
        each
        for covariate in regression.covariates
        for each in covariate.levels[1:] or covariate.levels
    ]
    estimates = [regression.intercept, *(each.coefficient for each in levels)]
    errors = [regression.intercept_error, *(each.standard_error for each in levels)]
    return np.array([estimates, errors], dtype=np.float64)


def result(design: AnyDesign, clients: int, epsilon: float, repeats: int, seed: int = 0) -> Row:
    """Returns the results of a setting."""
    rng, std = np.random.default_rng(seed), noise(epsilon)
    rows, ignoring, exact, power, size = [], [], [], [], []
    for _ in range(repeats):
        sampled = design.sampled(clients, std, rng)
        regression = sampled.regression()
        rows.append(coefficients(regression))
        ignoring.append(coefficients(sampled.regression(ignoring_noise=True)))
        exact.append(coefficients(design.sampled(clients, 0.0, rng).regression())[1])
        power.append(regression.covariates[design.tested].p_value)
        null = design.without_effect.sampled(clients, std, rng).regression()
        size.append(null.covariates[design.tested].p_value)
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


def _of_setting(setting: tuple[AnyDesign, int, float, int]) -> Row:
    torch.set_num_threads(1)
    return result(*setting)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    names = [field.name for field in fields(Row)]
    print(" ".join(names))
    written = Path(__file__).parent / "coverage.csv"
    with written.open("w", encoding="utf-8", newline="") as file, ProcessPoolExecutor() as pool:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(names)
        settings = product((*DESIGNS, *NUMBER_DESIGNS), CLIENTS, EPSILONS, (repeats,))
        for row in pool.map(_of_setting, settings):
            stated = [f"{each:.4g}" if isinstance(each, float) else each for each in astuple(row)]
            out.writerow(stated)
            print(" ".join(map(str, stated)), flush=True)


if __name__ == "__main__":
    main()
