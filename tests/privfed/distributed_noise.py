"""Runs and settings with distributed noise, for tests, and the distributions of the noise."""

import math
from dataclasses import replace

import numpy as np
from click.testing import CliRunner
from scipy import stats

from accounting.noises import Gaussian
from privfed.cli.main import main
from privfed.core.streams import Streams
from privfed.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfed.privacy.setting import ClientShares, CohortSize, Setting

STREAMS = Streams(5, simulated=True)


SETTING = Setting(
    cohort=CohortSize(20, 24), noise=ClientShares(16, honest=0.75), bits=20, length=10
)


SEEDED = "run.randomness=seeded"


EVERYBODY = ("cohort.sampler=full", "cohort.size=0")


DISTRIBUTED = ("privacy.mechanism=skellam", "secure.protocol=masks", *EVERYBODY)


def fits(sample, cdf, low, high):
    """Returns the p-value of a chi-square test of integers against `cdf`, over 20 bins."""
    edges = np.unique(np.linspace(low, high, 20).round().astype(int))
    inside = np.array([cdf(edge) for edge in edges])
    expected = np.diff(np.concatenate([[0.0], inside, [1.0]]))
    counts = np.histogram(sample, np.concatenate([[-np.inf], edges + 0.5, [np.inf]]))[0]
    keep = expected * len(sample) > 5
    counts = np.append(counts[keep], counts[~keep].sum())
    expected = np.append(expected[keep], expected[~keep].sum())
    used = expected > 0
    return stats.chisquare(counts[used], expected[used] * len(sample)).pvalue


def skellam_cdf(variance):
    return lambda k: float(stats.skellam.cdf(k, variance / 2, variance / 2))


def gaussian_cdf(std):
    k = np.arange(-40 * math.ceil(std), 40 * math.ceil(std) + 1)
    weights = np.exp(-(k**2) / (2 * std**2))
    below = np.cumsum(weights) / weights.sum()
    return lambda at: float(below[at - k[0]])


PEOPLE = (SEEDED, *EVERYBODY, "data.population=people", "run.rounds=3")


ARITHMETIC = (*PEOPLE, "secure.protocol=masks", "secure.simulate=arithmetic")


SKELLAM = (*ARITHMETIC, "privacy.mechanism=skellam", "aggregation.byzantine=2")


def shown(*words):
    result = CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "250"})
    assert result.exit_code == 0, result.output
    return result.stdout


def events(mechanism, sampler, clients=240, exchanges=1):
    return mechanism.events(sampler.of(clients).witness(0, clients), exchanges)


KINDS = {
    "minimum": (SkellamNoise, {}),
    "layers": (SkellamNoise, {"sizing": "layers"}),
    "Gaussian": (DiscreteGaussianNoise, {}),
    "Gaussian layers": (DiscreteGaussianNoise, {"sizing": "layers"}),
}


def variance_of(noise, grid, exchanges=1):
    """Returns the variance, in steps, of each exchange's noise that an event charges."""
    if isinstance(noise, Gaussian):
        return exchanges * (noise.noise_multiplier * grid.l2) ** 2
    return noise.variance


def with_variance(noise, factor):
    """Returns an event's noise with `factor` times its variance."""
    if isinstance(noise, Gaussian):
        return Gaussian(noise.noise_multiplier * math.sqrt(factor))
    return replace(noise, variance=noise.variance * factor)


LAYERED = (
    *("data.clients=400", "cohort.size=160", "secure.protocol=masks", "secure.threshold=0.5"),
    *("privacy.mechanism=skellam", "privacy.sizing=layers", "secure.colluders=0.05"),
)


def calibrated(*flags):
    return CliRunner().invoke(main, ["calibrate", "--delta", "1e-5", *flags, "--json"])
