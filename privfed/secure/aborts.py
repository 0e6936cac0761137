"""The privacy cost of visible aborts.

Privacy amplification by subsampling requires that the sampled cohort stays secret. A round aborts
visibly if too few or too many clients were sampled, or if too many of them dropped out. Such an
abort reveals something about the cohort, and costs a total variation distance equal to the abort's
probability (rules of proof, section 4). A sum that lacks a part of the cohort does not abort, but
costs the same: the part depends on the cohort. Without amplification the cohort need not be secret.
Dropout depends on public randomness only, so aborts then cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from accounting.events import Event
from accounting.noises import Gaussian
from accounting.over_rounds import RandomAllocation, Separated
from accounting.releases import PoissonSampled, SeveralSites, TruncatedPoisson, WithoutReplacement
from privfed.core.deferred import stats
from privfed.core.errors import Refused
from privfed.privacy.mechanism import Mechanism
from privfed.sampling.cohort import Sampler, Witness, draws_of
from privfed.secure.summation import Summation

LEAST_DECLARED_SHARE = 0.9
"""Smallest permitted population, as a fraction of `data.clients`, if aborts are charged.

The largest permitted population is `data.clients`.
"""
_REACH = 14.0
"""Cohort sizes are evaluated within this many standard deviations plus this many clients of the
mean."""


def round_event(mechanism: Mechanism, witness: Witness, exchanges: int, aborts: float) -> Event:
    """Returns the event of a round, charged for aborts if they reveal its cohort (`with_aborts`).

    Args:
      mechanism: the mechanism of the round.
      witness: the rule by which its cohort is sampled.
      exchanges: number of exchanges, each a sum, in the round.
      aborts: upper bound on the probability that the round aborts.
    """
    return with_aborts(mechanism.event(witness, exchanges), aborts)


def with_aborts(event: Event, aborts: float) -> Event:
    """Returns the event, charged for visible aborts if these reveal its cohort (`reveals_cohort`).

    Args:
      event: the event without aborts.
      aborts: upper bound on the probability of an abort, added to the event's slack (up to 1).
    """
    if not aborts or not reveals_cohort(event):
        return event
    return replace(event, slack=min(1.0, event.slack + aborts))


def reveals_cohort(event: Event) -> bool:
    """Whether visible aborts reveal a secret cohort: the event is amplified by subsampling."""
    sampled = PoissonSampled | SeveralSites | TruncatedPoisson | WithoutReplacement
    return isinstance(event.release, sampled | RandomAllocation)


def probability(
    summation: Summation,
    sampler: Sampler,
    clients: int,
    exchanges: int,
    dropout: float,
    canaries: int = 0,
    partial: bool = False,
) -> float:
    """Returns an upper bound on the probability that one of a round's sums aborts.

    For cohorts of random size, the bound holds for any permitted population: from nine tenths of
    `clients` up to `clients` plus `canaries`. To a cohort of fixed size all `canaries` are added,
    unless they displace clients from it (`Witness.shares_places`).

    Args:
      summation: the secure protocol of the sums, or plain sums.
      sampler: the sampler of cohorts.
      clients: the declared number of clients, `data.clients`.
      exchanges: sums per round.
      dropout: probability with which each sampled client drops out.
      canaries: canary clients that may be in the population.
      partial: whether a sum that lacks a part of the cohort counts as aborted; the result is then 0
        for sums that leave out no part.
    """
    chance = summation.partial_probability if partial else summation.abort_probability
    witness = sampler.witness(0, clients)
    if not witness.random:
        places = 0 if witness.shares_places else canaries
        once = chance(sampler.size + places, dropout)
    elif chance(0, dropout) == 0.0:  # no sum ever aborts
        once = 0.0
    else:
        most, rate = clients + canaries, witness.rate
        if isinstance(witness.release, Separated):  # some clients may return less often
            rate = sampler.size / clients
        once = _of_poisson_cohorts(chance, dropout, rate, clients, most, sampler.capacity() or most)
    return min(1.0, exchanges * once)


def _of_poisson_cohorts(
    chance_of: Callable[[int, float], float],
    dropout: float,
    rate: float,
    clients: int,
    most: int,
    cap: int,
) -> float:
    """Upper bound on the abort probability for cohorts of min(Binomial(N, rate), cap) clients.

    `chance_of` bounds it for a cohort size and `dropout`. The result holds for every N from 0.9
    `clients` to `most`. Cohorts above a cut count as aborts, with their probability at the largest
    N. Every other cohort size counts with its probability at the smallest N, times the largest
    abort probability of all sizes from this one to the cut. The result is the smallest bound of all
    evaluated cuts.
    """
    smallest = int(np.ceil(LEAST_DECLARED_SHARE * clients))
    low, high = _reach(smallest, rate)[0], min(_reach(most, rate)[1], cap)
    sizes = np.arange(min(low, high), high + 1)
    abort_probability = np.array([chance_of(int(size), dropout) for size in sizes])
    chance = _chance(sizes, smallest, rate)
    below = float(stats.binom.cdf(sizes[0] - 1, smallest, rate))
    ends = np.append(
        (abort_probability[1:] == 1.0) & (abort_probability[:-1] < 1.0), True
    )  # of each accepted range
    least = 1.0
    for cut in sizes[ends].tolist():
        # Any cut gives a bound: cohorts above it count as aborts.
        falling = np.maximum.accumulate(np.where(sizes > cut, 0.0, abort_probability)[::-1])[::-1]
        few = float((falling * chance).sum())
        above = float(stats.binom.sf(cut, most, rate)) if cut < cap else 0.0
        least = min(least, few + below + above)
    return least


def _chance(sizes: NDArray[np.int64], clients: int, rate: float) -> NDArray[np.float64]:
    """Returns P[Binomial(clients, rate) = size] for each of `sizes`.

    For the last of `sizes` the result is P[Binomial(clients, rate) >= size].
    """
    chance = np.asarray(stats.binom.pmf(sizes, clients, rate))
    chance[-1] = stats.binom.sf(sizes[-1] - 1, clients, rate)
    return chance


def _reach(clients: int, rate: float) -> tuple[int, int]:
    """Returns the smallest and the largest evaluated size of a Binomial(clients, rate) cohort.

    They are `_REACH` standard deviations plus `_REACH` clients from the mean, within 0 to
    `clients`.
    """
    mean, std = clients * rate, np.sqrt(clients * rate * (1 - rate))
    low = max(0, int(mean - _REACH * std - _REACH))
    return low, min(clients, int(mean + _REACH * std + _REACH))


def refuse_aborts(once: float, partial: float, slack: float, delta: float, cohort: str) -> None:
    """Raises `Refused` if rounds often abort, or if aborts and partial sums cost all of delta.

    Args:
      once: probability that a round aborts.
      partial: probability that a round aborts or a sum lacks a part of the cohort; 0 if none can.
      slack: total variation distance charged for these events of all rounds.
      delta: the delta of the budget.
      cohort: description of the expected cohort, for the message.

    Raises:
      Refused: if `once` > 1/2, or if 2 `slack` >= `delta`: these events cost at least 2 `slack` of
        delta.
    """
    if once > 0.5:
        raise Refused(
            f"secure sums would abort in {once:.0%} of rounds ({cohort}): fewer clients survive "
            "than secure.threshold and secure.minimum require, more clients are sampled than "
            "secure.capacity, or secure.neighbours is too small; raise cohort.size or "
            "secure.capacity, lower secure.threshold, secure.minimum or cohort.dropout, remove "
            "secure.neighbours, "
            'or use cohort.sampler = "full"'
        )
    cost = 2 * slack  # at an epsilon of 0
    if cost >= delta:
        lacking, fewer = ("", "secure.admitted, ")
        if partial:
            lacking, fewer = (" or lack a region", "secure.regions, ")
        raise Refused(
            f"secure sums would abort{lacking} with probability {max(once, partial):.2g} per round "
            f"({cohort}), which reveals information about the sampled clients; over all rounds "
            f"this costs at least {cost:.2g} of delta = {delta:g}, so that nothing remains for the "
            f"noise; raise cohort.size or secure.capacity, lower {fewer}secure.threshold, "
            "secure.minimum or cohort.dropout, or use a sampler whose sample is not secret: "
            f"cohort.sampler = {draws_of(Gaussian, Separated)}"
        )


def refuse_sites_that_stop(once: float) -> None:
    """Raises `Refused` if `once`, the probability that a round aborts, is above 1/2.

    Rounds abort because too few sites survive. Such aborts cost no delta, because sites drop out
    independently of the sampled cohort.
    """
    if once > 0.5:
        raise Refused(
            f"sums over sites would abort in {once:.0%} of rounds: more sites drop out "
            "(cohort.dropout) than a sum tolerates; lower secure.minimum or secure.threshold, "
            "or raise privacy.tolerance or data.sites"
        )


def refuse_population(population: int, clients: int) -> None:
    """Raises `Refused` if the charge for aborts does not cover a population of this size.

    Args:
      population: the actual number of clients.
      clients: the declared number, `data.clients`.

    Raises:
      Refused: if `population` is not from nine tenths of `clients` to `clients`.
    """
    if not LEAST_DECLARED_SHARE * clients <= population <= clients:
        raise Refused(
            f"data.clients is {clients}, but aborts are charged only for populations of nine "
            "tenths of data.clients to data.clients, and the actual population is outside; set "
            "data.clients to the number of clients"
        )
