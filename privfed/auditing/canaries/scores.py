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

from accounting.events import CHANGE, Event
from accounting.over_rounds import BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import PoissonSampled
from privfed.auditing.canaries.log import CanaryRecord
from privfed.auditing.slot_evidence import of_fresh_slots
from privfed.config.config import Config
from privfed.plan.rule import rule_of
from privfed.round.algorithm import releases_per_round

Numbers = NDArray[np.float64]
_BEYOND = 1.2
"""A component of releases is common to them beyond so many times what noise alone would reach."""


@dataclass(frozen=True)
class Scale:
    """The public constants that products are scaled by.

    A row at the clip adds 1 to its product times `factor` (None: the clip moved), per exchange;
    `coefficients` are those by which noise is correlated over rounds.
    """

    factor: float | None
    exchanges: int
    coefficients: Numbers

    @classmethod
    def of(cls, config: Config) -> Scale:
        """The scale of the mechanism that `config` runs."""
        mechanism, size = config.mechanism, config.sampler.size
        moves = bool(mechanism.init())
        return cls(
            None if moves else size / mechanism.clip,
            releases_per_round(config.objective, rule_of(config)),
            mechanism.coefficients(),
        )


def likelihood_ratios(record: CanaryRecord, event: Event, scale: Scale) -> Numbers:
    """The log likelihood of each canary's products if it entered, over that if not `[K]`.

    Its product with a release is 1 if it took part and 0 if not, plus noise of the event's
    deviation, without what releases have in common. Under Poisson sampling it took part by a coin
    of each round; under a separation of b rounds, in one of b slots; under random allocation, in
    one of b slots of each epoch.
    """
    noise = event.noise
    z = noise.noise_multiplier * CHANGE[event.relation] if noise else 1.0
    z = max(z, 1e-3)
    if scale.factor is None:
        x = record.products / record.lengths[:, None] * (z * math.sqrt(record.dimension))
    else:
        x = record.products * scale.factor / scale.exchanges
    x = without_common(x)
    if isinstance(event.release, PoissonSampled):
        q = event.release.rate
        with np.errstate(divide="ignore"):
            taking, not_taking = np.log(q) + (2 * x - 1) / (2 * z**2), np.log1p(-q)
        return np.asarray(np.logaddexp(taking, not_taking).sum(0))
    filtered = _filtered(x, record.rounds, scale.coefficients)
    variance = (z * float(np.linalg.norm(scale.coefficients))) ** 2
    if isinstance(event.release, RandomAllocation):
        return _by_epochs(filtered, record.rounds, event.release, scale.coefficients, variance)
    b = event.release.separation if isinstance(event.release, Separated | BufferedToeplitz) else 1
    slots = []
    for slot in range(b):
        taken = ((record.rounds % b) == slot).astype(float)[:, None]
        signal = _filtered(taken, record.rounds, scale.coefficients)
        slots.append((signal * filtered).sum(0) - (signal**2).sum() / 2)
    return np.asarray(logsumexp(np.stack(slots) / variance, axis=0))


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
