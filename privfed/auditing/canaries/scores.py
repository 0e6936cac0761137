"""One number for each canary from all that was released: the more, the likelier it had entered.

Whether a bound on epsilon is valid does not depend on how these are made, as long as no coin is
looked at; only how much it shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

from accounting.empirical.one_run_tests import one_run_tests
from accounting.empirical.one_shot import Bell, epsilon_between, estimate
from accounting.empirical.two_sample import Claim, judge
from accounting.events import REPLACE_ONE, Event
from accounting.over_rounds import RandomAllocation
from accounting.releases import PoissonSampled, SeveralSites, TruncatedPoisson, WithoutReplacement
from privfed.auditing.canaries.evidence import Evidence
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


_KNOWN_NULL = 1000
"""The dimension from which on a random direction's cosine is Gaussian, to within what is fitted."""
_FEWEST = 5
"""Canaries of either kind (entered or not) below which nothing is said."""
_FEWEST_OF_HALVES = 20
"""The same where they are split in two halves."""


def weigh(
    record: CanaryRecord,
    event: Event,
    scale: Scale | None,
    claims: Sequence[Claim],
    confidence: float,
    slack: float = 0.0,
) -> Evidence | None:
    """Hold what canaries recorded against `claims`, points of one privacy profile, the run's first.

    All that happened had at most `slack` more probability than those allow. Where canaries were
    held against no release, there is no `scale`. None without any, or for too few canaries of
    either kind.
    """
    coins, statistics = record.coins, _statistics(record, event.relation, scale)
    if not claims or not statistics or min(coins.sum(), (~coins).sum()) < _FEWEST:
        return None
    epsilon, delta = claims[0]
    tests = one_run_tests(statistics, coins, claims, confidence)
    iterates, final = tests.bounds.get("iterates"), tests.bounds.get("final")
    (most, *_) = statistics.values()
    return Evidence(
        canaries=len(coins),
        entered=int(coins.sum()),
        relation=event.relation,
        confidence=confidence,
        epsilon_claimed=epsilon,
        delta=delta,
        epsilon_estimate_all_iterates=_estimate(_largest(record), coins, delta),
        epsilon_estimate_likelihood=_estimate(statistics.get("iterates"), coins, delta),
        epsilon_estimate_final=_final_estimate(record, event.relation, delta),
        epsilon_lower_bound=iterates.any_curve if iterates else None,
        epsilon_lower_bound_final=final.any_curve if final else None,
        epsilon_lower_bound_most=tests.most.any_curve,
        epsilon_lower_bound_if_gaussian=iterates.if_gaussian if iterates else None,
        epsilon_lower_bound_final_if_gaussian=final.if_gaussian if final else None,
        epsilon_lower_bound_most_if_gaussian=tests.most.if_gaussian,
        epsilon_lower_bound_split=_split_bound(most, coins, delta, confidence),
        p_value=min(1.0, tests.p_value + slack),
    )


def _statistics(record: CanaryRecord, relation: str, scale: Scale | None) -> dict[str, Numbers]:
    """What each adversary makes of every canary `[K]`, who sees most first."""
    statistics = {}
    if scale and len(record.rounds):
        statistics["iterates"] = likelihood_ratios(record, relation, scale)
    if record.final is not None:
        statistics["final"] = record.final
    return statistics


def _largest(record: CanaryRecord) -> Numbers | None:
    """Each canary's largest cosine with a release `[K]`; None where they were held against none."""
    if not len(record.rounds):
        return None
    return np.asarray((record.products / record.lengths[:, None]).max(0))


def _estimate(scores: Numbers | None, coins: NDArray[np.bool_], delta: float) -> float | None:
    """Epsilon between Gaussians fitted to the scores of canaries out, and in."""
    return None if scores is None else estimate(scores[~coins], scores[coins], delta)


def _final_estimate(record: CanaryRecord, relation: str, delta: float) -> float | None:
    """Epsilon by the final model: the null of cosines with it is known in high dimension.

    Under replace-one there is none: a canary with tails sends the opposite of its direction.
    """
    if record.final is None:
        return None
    null = Bell.fitted(record.final[~record.coins])
    if record.dimension >= _KNOWN_NULL and relation != REPLACE_ONE:
        null = Bell(0.0, record.dimension**-0.5)
    return epsilon_between(null, Bell.fitted(record.final[record.coins]), delta)


def _split_bound(
    scores: Numbers, coins: NDArray[np.bool_], delta: float, confidence: float
) -> float | None:
    """A lower bound on epsilon, its threshold chosen on one half of the canaries.

    The other half is counted. It holds if canaries leave each other alone.
    """
    out, into = scores[~coins], scores[coins]
    count = min(len(out), len(into))
    if count < _FEWEST_OF_HALVES:
        return None
    return judge(out[:count], into[:count], delta, confidence, [(0.0, delta)]).epsilon_lower
