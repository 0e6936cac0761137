"""One score per canary from all releases: the larger, the more likely is its bit heads.

The validity of a bound on epsilon does not depend on the choice of scores, provided they do not
depend on the secret bits. The choice affects only the power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

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
from privfed.core.deferred import stats
from privfed.plan.round_cost import round_cost
from privfed.plan.rule import message_length
from privfed.sampling.cohort import Witness

Numbers = NDArray[np.float64]
_LEAST_NOISE = 1e-3
"""Least noise standard deviation, in rows of a canary; squares of smaller ones underflow."""
_BEYOND = 1.2
"""Factor over the noise's largest eigenvalue above which a component is common to releases."""


@dataclass(frozen=True)
class Scale:
    """The public constants by which products are scaled.

    Attributes:
      factor: factor on products such that a row at the clipping norm adds 1 per exchange; None if
        the clipping norm is adaptive.
      exchanges: number of exchanges per round.
      coefficients: the filter C over rounds. The noise in the products is C^-1 z with independent
        z, so it is independent after C is applied; C is 1 if noise is not correlated.
      std: standard deviation of the independent noise in a scaled product.
      drawn: the public participation rule of canaries.
    """

    factor: float | None
    exchanges: int
    coefficients: Numbers
    std: float
    drawn: Witness

    @classmethod
    def of(cls, config: Config, dimension: int) -> Scale:
        """Returns the scale of a run with a known noise multiplier and `dimension` parameters.

        If a client has several rows (`Mechanism.in_parts`), each row at its clipping norm adds 1.
        """
        size = config.sampler.size
        cost = round_cost(config, message_length(config, dimension))
        mechanism = cost.mechanism.at(config.noise_multiplier)
        std = mechanism.noise_on_update(size) / math.sqrt(cost.exchanges)
        return cls(
            None if mechanism.adaptive else size / mechanism.clip,
            cost.exchanges,
            mechanism.coefficients(),
            max(std, _LEAST_NOISE),
            cost.witness,
        )


def likelihood_ratios(record: CanaryRecord, relation: str, scale: Scale) -> Numbers:
    """Returns the log-likelihood ratio of heads over tails for each canary `[K]`.

    If a canary took part in a release, its scaled product with that release is 1 for heads, and for
    tails 0 (-1 under replace-one), plus noise. If the clipping norm is adaptive, products are
    scaled by the release's norm instead. Components common to all releases are removed.

    Args:
      record: the records of the canaries.
      relation: adjacency relation of the claim.
      scale: scale of the products.
    """
    if scale.factor is None:
        apart = scale.std * math.sqrt(record.dimension)
        x = record.products / record.lengths[:, None] * apart
    else:
        x = record.products * scale.factor / scale.exchanges
    x = without_common(x)
    heads = _likelihood(x, record.rounds, scale)
    return heads - _likelihood(-x, record.rounds, scale) if relation == REPLACE_ONE else heads


def _likelihood(x: Numbers, rounds: NDArray[np.int64], scale: Scale) -> Numbers:
    """Returns the log-likelihood `[K]` of products `[T, K]`, to which each participation adds 1.

    The log-likelihood is relative to that of noise alone. Under independent sampling the canary
    takes part by one Bernoulli draw per round, or per round and site. Under separation by b rounds
    it takes part in one of b slots; under random allocation in one of b slots of each epoch.
    """
    match scale.drawn.release:
        case PoissonSampled() | TruncatedPoisson() | WithoutReplacement():
            return _log_likelihood(x, scale.drawn.rate, 1, scale.std)
        case SeveralSites(rate=rate, sites=sites):
            return _log_likelihood(x, rate, sites, scale.std)
    filtered, variance = _filtered(x, rounds, scale.coefficients), scale.std**2
    if isinstance(scale.drawn.release, RandomAllocation):
        return _by_epochs(filtered, rounds, scale.drawn.release, scale.coefficients, variance)
    slots = []
    for slot in range(scale.drawn.separation):
        taken = ((rounds % scale.drawn.separation) == slot).astype(float)[:, None]
        signal = _filtered(taken, rounds, scale.coefficients)
        slots.append((signal * filtered).sum(0) - (signal**2).sum() / 2)
    return np.asarray(logsumexp(np.stack(slots) / variance, axis=0))


def _log_likelihood(x: Numbers, rate: float, sites: int, std: float) -> Numbers:
    """Returns the log-likelihood of products `[T, K]` if each Bernoulli(`rate`) success adds 1.

    There are `sites` independent draws in each round.
    """
    added = np.arange(sites + 1)[:, None, None]
    with_so_many = (2 * added * x - added**2) / (2 * std**2)
    return np.asarray(
        logsumexp(with_so_many + stats.binom.logpmf(added, sites, rate), axis=0).sum(0)
    )


def _by_epochs(
    filtered: Numbers,
    rounds: NDArray[np.int64],
    drawn: RandomAllocation,
    coefficients: Numbers,
    variance: float,
) -> Numbers:
    """Returns the log-likelihood `[K]` of `filtered` products `[T, K]`, up to constants.

    By the rule `drawn`, a canary takes part in one secret slot of each epoch. `variance` is that of
    the filtered noise.
    """
    of_round = np.zeros_like(filtered)
    for at, round in enumerate(rounds):
        signal = _filtered((rounds == round).astype(float)[:, None], rounds, coefficients)
        of_round[at] = (signal * filtered).sum(0) - (signal**2).sum() / 2
    return of_fresh_slots((of_round / variance).T, rounds - 1, drawn)


def _filtered(x: Numbers, rounds: NDArray[np.int64], coefficients: Numbers) -> Numbers:
    """Returns C x for the products `x` `[T, k]` of `rounds` `[T]`, which decorrelates the noise.

    `coefficients` are C's first column. Products of rounds that are not in `rounds` count as 0.
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
    """Returns products `[T, K]` without components common to releases, such as the model's path.

    Over canaries, products with noise alone have a covariance of equal eigenvalues, up to the edge
    of Marchenko & Pastur (1967). Components beyond that edge are shrunk to the size of the others.
    """
    rounds, canaries = x.shape
    left, singular, _ = np.linalg.svd(x, full_matrices=False)
    bulk = float(np.median(singular**2))
    edge = bulk * (1 + math.sqrt(rounds / canaries)) ** 2 * _BEYOND
    shrunk = np.where(singular**2 > edge, bulk / np.maximum(singular**2, 1e-300), 1.0)
    return np.asarray(x - (left * (1 - shrunk)) @ (left.T @ x))


_KNOWN_NULL = 1000
"""Dimension from which a random direction's cosine is Gaussian up to the error of a fit."""
_FEWEST = 5
"""Number of canaries of either kind (entered or not) below which no evidence is reported."""
_FEWEST_OF_HALVES = 20
"""Number of canaries of either kind below which no bound by two halves is computed."""


def weigh(
    record: CanaryRecord,
    event: Event,
    scale: Scale | None,
    claims: Sequence[Claim],
    confidence: float,
    slack: float = 0.0,
) -> Evidence | None:
    """Returns the evidence of canaries' scores about points of the claimed privacy profile.

    Args:
      record: the records of the canaries.
      event: the event charged per round.
      scale: scale of products; None if no releases were recorded.
      claims: points (epsilon, delta) of one privacy profile; the first is the run's claim.
      confidence: confidence of the lower bounds on epsilon.
      slack: total variation by which the true distribution may exceed these claims.

    Returns:
      The evidence; None without claims or scores, or if fewer than 5 canaries have heads, or tails.
    """
    inclusion, statistics = record.inclusion, _statistics(record, event.relation, scale)
    if not claims or not statistics or min(inclusion.sum(), (~inclusion).sum()) < _FEWEST:
        return None
    epsilon, delta = claims[0]
    tests = one_run_tests(statistics, inclusion, claims, confidence)
    iterates, final = tests.bounds.get("iterates"), tests.bounds.get("final")
    (most, *_) = statistics.values()
    return Evidence(
        canaries=len(inclusion),
        entered=int(inclusion.sum()),
        relation=event.relation,
        confidence=confidence,
        epsilon_claimed=epsilon,
        delta=delta,
        epsilon_estimate_all_iterates=_estimate(_largest(record), inclusion, delta),
        epsilon_estimate_likelihood=_estimate(statistics.get("iterates"), inclusion, delta),
        epsilon_estimate_final=_final_estimate(record, event.relation, delta),
        epsilon_lower_bound=iterates.any_curve if iterates else None,
        epsilon_lower_bound_final=final.any_curve if final else None,
        epsilon_lower_bound_most=tests.most.any_curve,
        epsilon_lower_bound_if_gaussian=iterates.if_gaussian if iterates else None,
        epsilon_lower_bound_final_if_gaussian=final.if_gaussian if final else None,
        epsilon_lower_bound_most_if_gaussian=tests.most.if_gaussian,
        epsilon_lower_bound_split=_split_bound(most, inclusion, delta, confidence),
        p_value=min(1.0, tests.p_value + slack),
    )


def _statistics(record: CanaryRecord, relation: str, scale: Scale | None) -> dict[str, Numbers]:
    """Returns the scores `[K]` by adversary: "iterates" if releases were recorded, and "final".

    "final" is missing before the run has ended, or if the model did not change.
    """
    statistics = {}
    if scale and len(record.rounds):
        statistics["iterates"] = likelihood_ratios(record, relation, scale)
    if record.final is not None:
        statistics["final"] = record.final
    return statistics


def _largest(record: CanaryRecord) -> Numbers | None:
    """Returns each canary's largest cosine with a release `[K]`; None without releases."""
    if not len(record.rounds):
        return None
    return np.asarray((record.products / record.lengths[:, None]).max(0))


def _estimate(scores: Numbers | None, inclusion: NDArray[np.bool_], delta: float) -> float | None:
    """Returns epsilon between Gaussians fitted to tails' and heads' scores; None without scores."""
    return None if scores is None else estimate(scores[~inclusion], scores[inclusion], delta)


def _final_estimate(record: CanaryRecord, relation: str, delta: float) -> float | None:
    """Estimates epsilon from the final scores; None without them.

    The distribution for tails is a Gaussian fitted to their scores. In d >= 1000 dimensions it is
    N(0, 1/d), except under replace-one, where a canary with tails sends the opposite row.
    """
    if record.final is None:
        return None
    null = Bell.fitted(record.final[~record.inclusion])
    if record.dimension >= _KNOWN_NULL and relation != REPLACE_ONE:
        null = Bell(0.0, record.dimension**-0.5)
    return epsilon_between(null, Bell.fitted(record.final[record.inclusion]), delta)


def _split_bound(
    scores: Numbers, inclusion: NDArray[np.bool_], delta: float, confidence: float
) -> float | None:
    """Returns a lower bound on epsilon by a threshold on `scores`.

    One half of the canaries determines the threshold, and the other half is tested. The bound holds
    if canaries do not affect each other. Returns None if fewer than 20 canaries have heads, or
    tails.
    """
    out, into = scores[~inclusion], scores[inclusion]
    count = min(len(out), len(into))
    if count < _FEWEST_OF_HALVES:
        return None
    return judge(out[:count], into[:count], delta, confidence, [(0.0, delta)]).epsilon_lower
