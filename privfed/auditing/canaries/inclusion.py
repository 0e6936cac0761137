"""The effect of a canary's secret bit: it selects a neighbour under the run's adjacency relation.

A claim states that two neighbouring datasets are hard to distinguish, and its *relation* defines
them. Each of K canaries has a secret, fair, independent bit. Heads and tails are two such
neighbours:

| relation    | heads                                            | tails                       |
|-------------|--------------------------------------------------|-----------------------------|
| add/remove  | the canary is in the population                  | it is not                   |
| zero-out    | it is present, and sends its row if sampled      | it adds zero when sampled   |
| replace-one | it is present, and sends its row if sampled      | it sends the opposite row   |

To *add zero* is to send a row that contributes nothing under the aggregation rule. A row of zeros
does contribute if a rule sums differences from a center, or counts rows (`number_of_nothing`).

Changing one bit replaces the run by its neighbour with respect to that canary, and nothing else: no
other canary's row, bit or site depends on the bit. So if the run is (epsilon, delta)-private for
each canary, the bits can be guessed from its releases no better than the one-run bound allows
(Steinke, Nasr & Jagielski 2023, Theorem 5.2, whose inclusion is any choice between two neighbours).
The scores are functions of the releases: of everything that the adversary of the claim sees, or of
a part of it. If the claim covers more (single messages of clients that add noise themselves, or a
server that knows the participants), the bound is still valid, and weaker.

**Real clients' guarantee is the one charged.** Canaries follow from a key, and from no client's
data; for a real client they are other members of the population. The charged event holds for

- *independent participation, or own slots* (`PoissonSampled`, `RandomAllocation`, `SeveralSites`,
  `Separated`, full participation): any other members of the population, because the proof
  conditions on all that they do. Rate and divisor follow from the declared number of clients, and
  stay the same.
- *sampling m of N without replacement* (`WithoutReplacement`), which canaries turn into m of N + K.
  Condition on j of those m being canaries; this does not depend on any client's data. The others
  are m - j clients sampled uniformly from N, and to their sum a vector is added that is independent
  of them. By joint quasi-convexity of the divergences (van Erven & Harremoes 2014) the round is no
  worse than the worst of m - j of N. The charge rises with the sampled fraction: it is a Renyi
  bound, a sum of positive powers of the fraction (Wang, Balle & Kasiviswanathan 2019, Theorem 27).
  So m of N bounds it.
- *truncated Poisson sampling* (`TruncatedPoisson`): a population of at most the size that the event
  states, which therefore counts N + K (`privfed.sampling.cohort.over_larger_population`).

A secure sum has at most N + K clients (`privfed.plan.sum_limits`). The probability of an abort is
charged for any population from nine tenths of N to N + K (`privfed.secure.aborts`). In a secure sum
canaries are clients like others: they round, mask and drop out by the same code, and sample their
noise shares from the same generator. Their directions and bits are stored, but their noise shares
are not, and no party knows these shares. A canary's noise share therefore counts like any client's.
These arguments hold for sums simulated in one process, which generates all clients' noise. Where
clients are on separate machines, the party that generated the canaries would know a part of the
noise, so canaries are refused (`privfed.plan.refusals.sampling`).
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
    """Returns the identities `[c]` of canaries `numbers` `[c]`, or of their `parts` (default: 0).

    Identities of canaries are negative; those of clients never are
    (`privfed.data.federation.client_number`, or a position). If a canary shared a client's
    identity, it would take part in that client's secret slot and reveal it.
    """
    of_canary = [0] * len(numbers) if parts is None else parts
    names = (_name(*each) for each in zip(numbers.tolist(), of_canary, strict=True))
    return np.array([~client_number(name) for name in names], dtype=np.int64)


def _name(canary: int, part: int) -> str:
    return f"canary {canary}, part {part}" if part else f"canary {canary}"


def displaces_clients(drawn: Witness) -> bool:
    """Whether cohorts have a fixed size, so that a sampled canary displaces a client."""
    return drawn.shares_places and not drawn.random


def canaries_drawn(plan: Plan) -> float:
    """Returns the expected number of canaries in a cohort if the population has all canaries."""
    config = plan.config
    count, clients = config.audit.canaries, config.data.clients
    population = clients + count if displaces_clients(plan.cost.witness) else clients
    return count * config.sampler.size / population


def canaries_sending(plan: Plan) -> float:
    """Returns the expected number of canaries in a cohort that send a row.

    Half of the sampled canaries send a row; under replace-one all do. Canaries that train hold no
    examples if their bit is tails, so half of them send a row under every relation.
    """
    drawn, train = canaries_drawn(plan), plan.config.audit.by_inputs
    return drawn if plan.event.relation == REPLACE_ONE and not train else drawn / 2


TAILS: Mapping[str, int] = {ADD_REMOVE: 0, ZERO_OUT: 0, REPLACE_ONE: -1}
"""Factor of a canary's row if its bit is tails, by relation; the factor of heads is 1."""


def number_of_nothing(rule: SumRule | RowRule) -> float:
    """Returns the number that fills a participating client's row so that it adds zero under `rule`.

    The number is 0, except for a `SumRule` that sums differences from a center (`remembers`), or
    several uploads or extra terms per client. Then it is NaN: a row that is not finite adds
    nothing, while a row of zeros would change such a sum.
    """
    counts = isinstance(rule, SumRule) and (rule.remembers or rule.uploads > 1 or rule.extra > 0)
    return math.nan if counts else 0.0


def canary_inclusion(count: int, streams: Streams) -> NDArray[np.bool_]:
    """Returns an independent fair bit for each of `count` canaries `[count]`; heads is True."""
    return (streams.at("canaries/coins").bits(count) & np.uint64(1)).astype(bool)


def inclusion_signs(inclusion: NDArray[np.bool_], relation: str) -> NDArray[np.int64]:
    """Returns the factor of each canary's row `[K]`: 1 for heads, 0 or -1 (`TAILS`) for tails."""
    return np.where(inclusion, 1, TAILS[relation])


def in_population(inclusion: NDArray[np.bool_], relation: str) -> Indices:
    """Returns the numbers, ascending, of the canaries in the population, by their bits `[K]`.

    Under add/remove these are the canaries with heads; under other relations, all canaries.
    """
    return np.flatnonzero(inclusion) if relation == ADD_REMOVE else np.arange(len(inclusion))
