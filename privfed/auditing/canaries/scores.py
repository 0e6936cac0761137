"""One number for each canary from all that was released: the more, the likelier it had entered.

Whether a bound on epsilon is valid does not depend on how these are made, as long as no coin is
looked at; only how much it shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

from accounting.events import REPLACE_ONE
from accounting.over_rounds import RandomAllocation
from accounting.releases import PoissonSampled, SeveralSites, TruncatedPoisson, WithoutReplacement
from privfed.auditing.canaries.log import CanaryRecord
from privfed.auditing.slot_evidence import of_fresh_slots
from privfed.config.config import Config
from privfed.plan.round_cost import round_cost
from privfed.plan.rule import message_length
from privfed.sampling.cohort import Witness

Numbers = NDArray[np.float64]
_LEAST_NOISE = 1e-3
"""In moves of a canary: less would leave the range of double precision, once it is squared."""
_BEYOND = 1.2
"""A component of releases is common to them beyond so many times what noise alone would reach."""


@dataclass(frozen=True)
class Scale:
    """The public constants that products are scaled by.

    A row at the clip adds 1 to its product times `factor` (None: the clip moved), per exchange, and
    `deviation` is that of the noise in such a product. `coefficients` are those by which noise is
    correlated over rounds: it is independent, and of that deviation, once they are applied. `drawn`
    is the rule by which canaries take part, as who reads releases knows it.
    """

    factor: float | None
    exchanges: int
    coefficients: Numbers
    deviation: float
    drawn: Witness

    @classmethod
    def of(cls, config: Config, dimension: int) -> Scale:
        """The scale of what `config` runs on a model of `dimension` numbers, once it was planned.

        Of a client whose rows come in parts, one part at its clip adds 1.
        """
        size = config.sampler.size
        cost = round_cost(config, message_length(config, dimension))
        mechanism = cost.mechanism.at(config.noise_multiplier)
        deviation = mechanism.noise_on_update(size) / math.sqrt(cost.exchanges)
        return cls(
            None if mechanism.adaptive else size / mechanism.clip,
            cost.exchanges,
            mechanism.coefficients(),
            max(deviation, _LEAST_NOISE),
            cost.witness,
        )


def likelihood_ratios(record: CanaryRecord, relation: str, scale: Scale) -> Numbers:
    """The log likelihood of each canary's products if its coin was heads, over that if not `[K]`.

    Its product with a release is 1 if it took part with heads, and with tails 0, or under
    replace-one -1, plus noise, without what releases have in common.
    """
    if scale.factor is None:
        apart = scale.deviation * math.sqrt(record.dimension)
        x = record.products / record.lengths[:, None] * apart
    else:
        x = record.products * scale.factor / scale.exchanges
    x = without_common(x)
    heads = _likelihood(x, record.rounds, scale)
    return heads - _likelihood(-x, record.rounds, scale) if relation == REPLACE_ONE else heads


def _likelihood(x: Numbers, rounds: NDArray[np.int64], scale: Scale) -> Numbers:
    """The log likelihood of products `[T, K]` if each canary sent 1 whenever it took part `[K]`.

    Over that of products that are noise alone. By independent coins it took part by one of each
    round, or of each round and site; by separation of b rounds, in one of b slots; by random
    allocation, in one of b slots of each epoch.
    """
    match scale.drawn.release:
        case PoissonSampled() | TruncatedPoisson() | WithoutReplacement():
            return _by_coins(x, scale.drawn.rate, 1, scale.deviation)
        case SeveralSites(rate=rate, sites=sites):
            return _by_coins(x, rate, sites, scale.deviation)
    filtered, variance = _filtered(x, rounds, scale.coefficients), scale.deviation**2
    if isinstance(scale.drawn.release, RandomAllocation):
        return _by_epochs(filtered, rounds, scale.drawn.release, scale.coefficients, variance)
    slots = []
    for slot in range(scale.drawn.separation):
        taken = ((rounds % scale.drawn.separation) == slot).astype(float)[:, None]
        signal = _filtered(taken, rounds, scale.coefficients)
        slots.append((signal * filtered).sum(0) - (signal**2).sum() / 2)
    return np.asarray(logsumexp(np.stack(slots) / variance, axis=0))


def _by_coins(x: Numbers, rate: float, sites: int, deviation: float) -> Numbers:
    """The log likelihood of products `[T, K]`, if each of `sites` coins of bias `rate` adds 1.

    The coins are of each round by itself.
    """
    added = np.arange(sites + 1)[:, None, None]
    with_so_many = (2 * added * x - added**2) / (2 * deviation**2)
    return np.asarray(logsumexp(with_so_many + binom.logpmf(added, sites, rate), axis=0).sum(0))


def _by_epochs(
    filtered: Numbers,
    rounds: NDArray[np.int64],
    drawn: RandomAllocation,
    coefficients: Numbers,
    variance: float,
) -> Numbers:
    """The log likelihood of products that were `filtered` `[T, K]`, up to a constant `[K]`."""
    of_round = np.zeros_like(filtered)
    for at, round in enumerate(rounds):
        signal = _filtered((rounds == round).astype(float)[:, None], rounds, coefficients)
        of_round[at] = (signal * filtered).sum(0) - (signal**2).sum() / 2
    return of_fresh_slots((of_round / variance).T, rounds - 1, drawn)


def _filtered(x: Numbers, rounds: NDArray[np.int64], coefficients: Numbers) -> Numbers:
    """C x over `rounds` `[T, k]`, which makes correlated noise independent.

    Rounds without a product count as 0.
    """
    if len(coefficients) == 1:
        return x
    products = np.zeros((int(rounds[-1]), x.shape[1]))
    products[rounds - 1] = x
    filtered = np.zeros_like(products)
    for back, c in enumerate(coefficients):
        filtered[back:] += c * products[: len(products) - back]
    return np.asarray(filtered[rounds - 1])


def without_common(x: Numbers) -> Numbers:
    """Products `[T, K]` less what releases have in common: the model's way through the rounds.

    Over canaries, products of noise alone have a covariance of equal eigenvalues, to within the
    edge of Marchenko & Pastur (1967). Components beyond it are shrunk to the others' size.
    """
    rounds, canaries = x.shape
    left, singular, _ = np.linalg.svd(x, full_matrices=False)
    bulk = float(np.median(singular**2))
    edge = bulk * (1 + math.sqrt(rounds / canaries)) ** 2 * _BEYOND
    shrunk = np.where(singular**2 > edge, bulk / np.maximum(singular**2, 1e-300), 1.0)
    return np.asarray(x - (left * (1 - shrunk)) @ (left.T @ x))
