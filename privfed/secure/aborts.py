"""What visible aborts cost: whether a sum aborts may tell who was drawn.

Amplification rests on the draw being secret. A round that aborts for all to see, because too few or
too many clients were drawn or too many of them dropped out, tells something of its draw, and costs
a total variation of the probability of that (PRIVACY, section 4). Where nothing is amplified the
draw is no secret, dropping out follows public coins, and aborts cost nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from accounting.events import Event
from accounting.noises import Gaussian
from accounting.over_rounds import RandomAllocation, Separated
from accounting.releases import PoissonSampled, SeveralSites, TruncatedPoisson, WithoutReplacement
from privfed.core.errors import Refused
from privfed.privacy.mechanism import Mechanism
from privfed.sampling.cohort import Sampler, Witness, draws_of
from privfed.secure.summation import Summation

FEWEST_OF_DECLARED = 0.9
"""A population that joins by coins may be this part of `data.clients`, and not more than it."""
_REACH = 14.0
"""Deviations around the mean that are looked at one by one; beyond is counted as an abort."""


def round_event(mechanism: Mechanism, witness: Witness, exchanges: int, aborts: float) -> Event:
    """The event of a round that aborts with a probability of at most `aborts`."""
    return with_aborts(mechanism.event(witness, exchanges), aborts)


def with_aborts(event: Event, aborts: float) -> Event:
    """`event`, charged for visible aborts where these tell of a secret draw."""
    if not aborts or not tells_who_was_drawn(event):
        return event
    return replace(event, slack=min(1.0, event.slack + aborts))


def tells_who_was_drawn(event: Event) -> bool:
    """Whether an abort would tell: the event is amplified, and so rests on a secret draw."""
    sampled = PoissonSampled | SeveralSites | TruncatedPoisson | WithoutReplacement
    return isinstance(event.release, sampled | RandomAllocation)


def probability(
    summation: Summation,
    sampler: Sampler,
    clients: int,
    exchanges: int,
    dropout: float,
    canaries: int = 0,
) -> float:
    """An upper bound on the probability that one of a round's sums aborts.

    It holds for any permitted population: of nine tenths of `clients` declared, or more, up to all
    of them with as many `canaries`. Where everybody takes part, all canaries do, too.
    """
    witness = sampler.witness(0, clients)
    if not witness.random:
        places = 0 if witness.shares_places else canaries
        once = summation.stops(sampler.size + places, dropout)
    elif summation.stops(0, dropout) == 0.0:  # nothing ever does
        once = 0.0
    else:
        most = clients + canaries
        once = _by_coins(
            summation, dropout, witness.rate, clients, most, sampler.capacity() or most
        )
    return min(1.0, exchanges * once)


def _by_coins(
    summation: Summation, dropout: float, rate: float, clients: int, most: int, cap: int
) -> float:
    """The probability where min(Binomial(N, rate), cap) are drawn of the worst population N.

    N is from 0.9 `clients` to `most`. The result is an upper bound: what too small a cohort does
    is taken at the smallest N, with the largest probability of any cohort that is at least as
    large, what too large a one does at the largest.
    """
    smallest = int(np.ceil(FEWEST_OF_DECLARED * clients))
    low, high = _reach(smallest, rate)[0], min(_reach(most, rate)[1], cap)
    sizes = np.arange(min(low, high), high + 1)
    stops = np.array([summation.stops(int(size), dropout) for size in sizes])
    chance = _chance(sizes, smallest, rate)
    below = float(stats.binom.cdf(sizes[0] - 1, smallest, rate))
    ends = np.append((stops[1:] == 1.0) & (stops[:-1] < 1.0), True)  # of stretches that fit
    least = 1.0
    for cut in sizes[ends].tolist():
        # Any cut gives a bound: what lies above it counts as an abort.
        falling = np.maximum.accumulate(np.where(sizes > cut, 0.0, stops)[::-1])[::-1]
        few = float((falling * chance).sum())
        above = float(stats.binom.sf(cut, most, rate)) if cut < cap else 0.0
        least = min(least, few + below + above)
    return least


def _chance(sizes: NDArray[np.int64], clients: int, rate: float) -> NDArray[np.float64]:
    """P[min(Binomial, last size) = size] for each of `sizes`, without what is below them."""
    chance = np.asarray(stats.binom.pmf(sizes, clients, rate))
    chance[-1] = stats.binom.sf(sizes[-1] - 1, clients, rate)
    return chance


def _reach(clients: int, rate: float) -> tuple[int, int]:
    """The smallest and the largest cohort that are looked at."""
    mean, deviation = clients * rate, np.sqrt(clients * rate * (1 - rate))
    low = max(0, int(mean - _REACH * deviation - _REACH))
    return low, min(clients, int(mean + _REACH * deviation + _REACH))


def refuse_aborts(once: float, slack: float, delta: float, cohort: str) -> None:
    """Raises `Refused` where most rounds would abort, or `slack` alone costs more than delta.

    `once` is the probability that a round aborts, `slack` what all rounds are charged of it, and
    `cohort` the expected cohort in words.
    """
    if once > 0.5:
        raise Refused(
            f"a secure sum would abort in {once:.0%} of rounds, of {cohort}: fewer clients stay "
            "than secure.threshold and secure.minimum ask for, more are drawn than "
            "secure.capacity, or secure.neighbours are too few; raise cohort.size or "
            "secure.capacity, lower the "
            'others or cohort.dropout, remove secure.neighbours, or use cohort.sampler = "full"'
        )
    cost = 2 * slack  # at an epsilon of 0
    if cost >= delta:
        raise Refused(
            f"secure sums would abort with probability {once:.2g} a round, which tells who was "
            f"drawn, and over all rounds, of {cohort}, costs at least {cost:.2g} of delta = "
            f"{delta:g}: nothing remains for the noise. Raise cohort.size or secure.capacity, "
            "lower secure.admitted, secure.threshold, secure.minimum or cohort.dropout, or use a "
            "sampler whose draw is no secret: "
            f"cohort.sampler = {draws_of(Gaussian, Separated)}"
        )


def refuse_sites_that_stop(once: float) -> None:
    """Raises `Refused` where most rounds would abort, as too few sites stay: `once` is how likely.

    That costs no delta, as sites drop out whoever was drawn.
    """
    if once > 0.5:
        raise Refused(
            f"a sum over sites would abort in {once:.0%} of rounds: more sites drop out "
            "(cohort.dropout) than may be missing; lower secure.minimum or secure.threshold, or "
            "raise privacy.tolerance or data.sites"
        )


def refuse_population(population: int, clients: int) -> None:
    """Raises `Refused` where aborts were charged for other populations than the actual one."""
    if not FEWEST_OF_DECLARED * clients <= population <= clients:
        raise Refused(
            f"data.clients is {clients}, and there are other than so many; how likely a secure "
            "sum aborts is charged for populations from nine tenths of data.clients up to it: "
            "declare another number"
        )
