"""What a canary's coin decides: which of the two neighbours of the run's own relation is run.

A claim says that two populations are hard to tell apart, and its *relation* says which two. Each of
K canaries has a secret, fair coin of its own, and heads and tails are two such neighbours:

| relation    | heads                                        | tails                      |
|-------------|----------------------------------------------|----------------------------|
| add/remove  | the canary is in the population              | it is not                  |
| zero-out    | it is in it, and sends its row when asked    | it adds zero when asked    |
| replace-one | it is in it, and sends its row when asked    | it sends the opposite row  |

To *add zero* is to send a row that the aggregation rule takes for nothing. One of zeros is not that
where a rule sums ways from a center, or counts rows (`number_of_nothing`).

Turning one coin replaces the run by its neighbour about that canary, and nothing else: no other
canary's row, coin or site depends on it. So were the run (epsilon, delta)-private about each
canary, the coins could be guessed from what it releases no better than the bound of one run says
(Steinke, Nasr & Jagielski 2023, Theorem 5.2, whose inclusion is any choice between two neighbours).
What is scored is what is released: all of what the adversary of the claim sees, or a function of
it. Where the claim is about more (single messages of clients who add noise themselves, or a server
who knows who took part) a bound is as valid, and weaker.

**Real clients' guarantee is what was charged.** Canaries follow from a key, and from nobody's data;
to a real client they are others in the population. Its event holds for

- *independent coins, slots of one's own* (`PoissonSampled`, `RandomAllocation`, `SeveralSites`,
  `Separated`, everybody): any others in the population, as the proof fixes all they do. Rate and
  divisor follow from the clients declared, and stay.
- *m drawn of N* (`WithoutReplacement`), of which canaries make m of N + K. Given that j of those m
  are canaries, which depends on nobody's data, the others are m - j drawn uniformly of N, to whose
  sum a vector is added that depends on none of them. By joint quasi-convexity of the divergences
  (van Erven & Harremoes 2014) the round is no worse than the worst of m - j of N. What is charged
  for a share drawn rises with it: a Renyi bound, which is a sum of positive powers of the share
  (Wang, Balle & Kasiviswanathan 2019, Theorem 27). So m of N bounds it.
- *a draw that is cut* (`TruncatedPoisson`): a population of at most so many as the event says,
  which therefore counts N + K (`privfed.sampling.evaluation_rounds`).

A secure sum has N + K clients at most (`privfed.plan.sum_limits`), and whether it aborts is charged
for any population from nine tenths of N to N + K (`privfed.secure.aborts`). In it canaries are
clients like others: they round, mask and drop out by the same code, and draw their shares of noise
from the same generator. Their directions and coins are kept, these shares are not, and nobody knows
them: a share of theirs is as good a part of the noise that is counted as anybody's. That holds of
sums that are simulated in one process, which makes up all clients' noise; where clients are on
machines of their own, who made the canaries up would know a part of the noise, and they are refused
(`privfed.plan.refusals.sampling`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from defenses.types import RowRule, SumRule
from privfed.core.streams import Streams
from privfed.core.vector import Indices
from privfed.data.federation import client_number
from privfed.plan.plan import Plan
from privfed.sampling.cohort import Witness


def canary_identities(numbers: Indices, parts: Iterable[int] | None = None) -> Indices:
    """The own number of each of the canaries `numbers` `[c]`, or of such `parts` `[c]` of them.

    All are below 0, and clients' are not (`privfed.data.federation.client_number`, or a place),
    whatever these are called: were a canary's the same as a client's, it would take part in that
    client's secret slot, and tell which that is.
    """
    of_canary = [0] * len(numbers) if parts is None else parts
    names = (_name(*each) for each in zip(numbers.tolist(), of_canary, strict=True))
    return np.array([~client_number(name) for name in names], dtype=np.int64)


def _name(canary: int, part: int) -> str:
    return f"canary {canary}, part {part}" if part else f"canary {canary}"


def takes_places(drawn: Witness) -> bool:
    """Whether cohorts have so many places and no more, which canaries share with clients."""
    return drawn.shares_places and not drawn.random


def canaries_drawn(plan: Plan) -> float:
    """How many canaries are expected in a cohort, were all of them in the population."""
    config = plan.config
    count, clients = config.audit.canaries, config.data.clients
    population = clients + count if takes_places(plan.cost.witness) else clients
    return count * config.sampler.size / population


def canaries_sending(plan: Plan) -> float:
    """How many of them are expected to send a row: half of them, or under replace-one all.

    Of those that train, the half with tails holds nothing.
    """
    drawn, train = canaries_drawn(plan), plan.config.audit.by_inputs
    return drawn if plan.event.relation == REPLACE_ONE and not train else drawn / 2


TAILS: Mapping[str, int] = {ADD_REMOVE: 0, ZERO_OUT: 0, REPLACE_ONE: -1}
"""How often a canary whose coin is tails sends its row, by relation; one with heads sends it once.
"""


def number_of_nothing(rule: SumRule | RowRule) -> float:
    """What each number is of a row that adds zero by `rule`, of a client that takes part.

    Zero, but where the rule's center moves or its terms count rows: there it is not a number, as a
    row that is not finite adds nothing (`SumRule`), and one of zeros adds its way from the center.
    """
    counts = isinstance(rule, SumRule) and (rule.remembers or rule.uploads > 1 or rule.extra > 0)
    return math.nan if counts else 0.0


def canary_coins(count: int, streams: Streams) -> NDArray[np.bool_]:
    """An independent fair coin for each of `count` canaries `[count]`, heads True."""
    return (streams.at("canaries/coins").bits(count) & np.uint64(1)).astype(bool)


def coin_signs(coins: NDArray[np.bool_], relation: str) -> NDArray[np.int64]:
    """How often each canary sends its own row, by its coin `[K]`: 1, 0 or -1 times."""
    return np.where(coins, 1, TAILS[relation])


def in_population(coins: NDArray[np.bool_], relation: str) -> Indices:
    """The numbers of the canaries that are in the population, by their coins `[K]`, in order.

    Under add/remove those with heads; where membership is public, all.
    """
    return np.flatnonzero(coins) if relation == ADD_REMOVE else np.arange(len(coins))
