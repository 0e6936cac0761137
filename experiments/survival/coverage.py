"""Coverage of 95 % intervals, errors, and tests of `privfed.analytics.survival`, by simulation.

`python -m experiments.survival.coverage [repetitions]` writes coverage.csv and prints it. Event
times are exponential or Weibull, censoring times uniform, and 20 bins divide the time of
observation. The truth of a curve is that of grouped times, which Kaplan-Meier estimates without
noise.
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
from scipy.optimize import brentq

from accounting.bounds.closed import gaussian_epsilon
from privfed.analytics.survival.curves import SurvivalCounts, SurvivalEstimate, survival_curves
from privfed.analytics.survival.tests import hazard_ratios, log_rank

Reals = NDArray[np.float64]
BINS, DELTA, RATE, RATIO = 20, 1e-5, 1.2, 1.5
PATIENTS, EPSILONS = (1_000, 2_000, 10_000), (0.5, 1.0, 2.0, np.inf)
LEAST_AT_RISK = 20
_FINE = 200


@dataclass(frozen=True)
class Design:
    """Weibull event times of a `shape`, and censoring times uniform on (0, `censored_by`)."""

    name: str
    shape: float
    censored_by: float

    def cells(self, ratio: float = 1.0) -> Reals:
        """Returns the probabilities of all cells `[2 b]` at a hazard ratio."""
        times = np.linspace(0.0, 1.0, BINS * _FINE + 1)
        survival = np.exp(-ratio * (RATE * times) ** self.shape)
        observed = np.maximum(1 - times / self.censored_by, 0.0)
        events = -np.diff(survival) * (observed[1:] + observed[:-1]) / 2
        censored = -np.diff(observed) * (survival[1:] + survival[:-1]) / 2
        cells = np.concatenate([events, censored]).reshape(2 * BINS, _FINE).sum(1)
        cells[-1] += 1.0 - cells.sum()
        return np.asarray(cells)

    def truth(self) -> tuple[Reals, Reals]:
        """Returns survival at the right edges of bins `[b]`, of grouped and of exact times."""
        cells = self.cells()
        at_risk = np.cumsum((cells[:BINS] + cells[BINS:])[::-1])[::-1]
        exact = np.exp(-((RATE * np.arange(1, BINS + 1) / BINS) ** self.shape))
        return np.asarray(np.cumprod(1 - cells[:BINS] / at_risk)), np.asarray(exact)


DESIGNS = Design("exponential", 1.0, 1.5), Design("Weibull, few at risk late", 1.5, 1.0)


@dataclass(frozen=True)
class Row:
    """Results of a setting; `least` and `most` are over bins with 20 patients or more at risk.

    `exact_times` is the least coverage of survival at exact times by the actuarial estimate, in all
    bins but the last.
    """

    design: str
    patients: int
    epsilon: float
    std: float
    least: float
    mean: float
    most: float
    ignoring_noise: float
    exact_times: float
    hazard: float
    band: float
    restricted_mean: float
    median: float
    error: float
    width: float
    log_rank_size: float
    log_rank_power: float
    ratio_coverage: float


def noise(epsilon: float) -> float:
    """Returns the standard deviation of noise on a cell at `epsilon` and `DELTA`."""
    if epsilon == np.inf:
        return 0.0
    return float(brentq(lambda std: gaussian_epsilon(std, DELTA) - epsilon, 0.3, 100.0))


def sampled(
    design: Design, ratios: tuple[float, ...], patients: int, std: float, rng: np.random.Generator
) -> SurvivalCounts:
    """Returns a noised table with a group of equal size for each hazard ratio."""
    cells = np.stack([design.cells(ratio) for ratio in ratios]) / len(ratios)
    counts = rng.multinomial(patients, cells.ravel()).reshape(cells.shape)
    noised = counts + std * rng.standard_normal(counts.shape)
    edges = tuple(np.linspace(0.0, 1.0, BINS + 1).tolist())
    names = tuple(f"{ratio:g} ({group})" for group, ratio in enumerate(ratios))
    return SurvivalCounts(edges, names, noised[:, :BINS], noised[:, BINS:], std)


def covered(estimates: list[SurvivalEstimate], truth: Reals) -> NDArray[np.bool_]:
    """Returns a mask of the true values that are within their intervals."""
    low = np.array([-np.inf if each.low is None else each.low for each in estimates])
    high = np.array([np.inf if each.high is None else each.high for each in estimates])
    return np.asarray((low <= truth) & (truth <= high))


def curves(
    design: Design, patients: int, std: float, repeats: int, rng: np.random.Generator
) -> dict[str, float]:
    """Returns results for the curve of one group."""
    truth, exact = design.truth()
    cells = design.cells()
    at_risk = patients * np.cumsum((cells[:BINS] + cells[BINS:])[::-1])[::-1]
    hazard = np.cumsum(1 - truth / np.append(1.0, truth[:-1]))
    area = np.array([(np.append(1.0, truth[:-1]) + truth).mean() / 2])
    half = np.array([np.interp(0.5, truth[::-1], np.arange(BINS, 0, -1) / BINS)])
    rows = []
    for _ in range(repeats):
        counts = sampled(design, (1.0,), patients, std, rng)
        (curve,) = survival_curves(counts)
        (naive,) = survival_curves(replace(counts, std=0.0))
        (actuarial,) = survival_curves(counts, midpoint=True)
        survival = [point.survival for point in curve.points]
        values = np.array([astuple(each) for each in survival])
        rows.append(
            (
                covered(survival, truth),
                covered([point.survival for point in naive.points], truth),
                covered([point.survival for point in actuarial.points], exact),
                covered([point.cumulative_hazard for point in curve.points], hazard),
                covered([point.band for point in curve.points], truth).all(),
                covered([curve.restricted_mean], area).all(),
                covered([curve.median], half).all(),
                np.abs(values[:, 0] - truth).max(),
                np.mean(values[:, 2] - values[:, 1]),
            )
        )
    columns = [np.array(column, dtype=float) for column in zip(*rows, strict=True)]
    survival, naive, actuarial, hazards = (
        column.mean(0)[at_risk >= LEAST_AT_RISK] for column in columns[:4]
    )
    return {
        "least": survival.min(),
        "mean": survival.mean(),
        "most": survival.max(),
        "ignoring_noise": naive.min(),
        "exact_times": actuarial[: BINS - 1].min(),
        "hazard": hazards.min(),
        "band": columns[4].mean(),
        "restricted_mean": columns[5].mean(),
        "median": columns[6].mean(),
        "error": np.median(columns[7]),
        "width": columns[8].mean(),
    }


def comparisons(
    design: Design, patients: int, std: float, repeats: int, rng: np.random.Generator
) -> dict[str, float]:
    """Returns results for two groups with equal hazards, and with a hazard ratio of `RATIO`."""
    size, power, coverage = [], [], []
    for _ in range(repeats):
        size.append(log_rank(sampled(design, (1.0, 1.0), patients, std, rng)).p_value < 0.05)
        counts = sampled(design, (1.0, RATIO), patients, std, rng)
        power.append(log_rank(counts).p_value < 0.05)
        (ratio,) = hazard_ratios(counts, counts.groups[0])
        coverage.append(ratio.low is not None and ratio.low <= RATIO <= (ratio.high or np.inf))
    return {
        "log_rank_size": float(np.mean(size)),
        "log_rank_power": float(np.mean(power)),
        "ratio_coverage": float(np.mean(coverage)),
    }


def result(design: Design, patients: int, epsilon: float, repeats: int, seed: int = 0) -> Row:
    """Returns the results of a setting."""
    rng, std = np.random.default_rng(seed), noise(epsilon)
    one = curves(design, patients, std, repeats, rng)
    two = comparisons(design, patients, std, repeats, rng)
    return Row(design.name, patients, epsilon, std, **one, **two)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    for design in DESIGNS:
        grouped, exact = design.truth()
        print(f"{design.name}: bias from grouping {np.abs(grouped - exact).max():.4f}")
    names = [field.name for field in fields(Row)]
    print(" ".join(names))
    written = Path(__file__).parent / "coverage.csv"
    with written.open("w", encoding="utf-8", newline="") as file, ProcessPoolExecutor() as pool:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(names)
        settings = zip(*product(DESIGNS, PATIENTS, EPSILONS, (repeats,)), strict=True)
        for row in pool.map(result, *settings):
            stated = [f"{each:.4g}" if isinstance(each, float) else each for each in astuple(row)]
            out.writerow(stated)
            print(" ".join(map(str, stated)), flush=True)


if __name__ == "__main__":
    main()
