"""What a run's secure sums have to hold: as configured, and solved for where aborts cost."""

from __future__ import annotations

import math
from dataclasses import replace

from scipy import stats

from privfed.config.config import Config
from privfed.sampling.cohort import Witness
from privfed.secure.aborts import FEWEST_OF_DECLARED
from privfed.secure.limits import Limits
from privfed.secure.summation import RowHiding

_NEXT_TO_NOTHING = 1e-3
"""The part of delta that aborts may cost, wherever that can be had."""
_LARGEST_EPSILON = 40.0


def limits(config: Config) -> Limits:
    """As configured: by default, the largest cohort that can be drawn.

    And how many have to stay: distributed noise is made up by a guaranteed number.
    """
    secure, sampler, shared = config.secure, config.sampler, config.shared_noise
    most = secure.capacity or sampler.capacity() or config.data.clients
    minimum, tolerance = secure.minimum, 1.0
    if shared and shared.layered:
        tolerance = shared.tolerance
    elif shared:
        minimum = minimum or math.ceil((1 - shared.tolerance) * sampler.size - 1e-9)
    arithmetic = secure.simulate == "arithmetic"
    return Limits(most, minimum, arithmetic, tolerance, sampler.size, config.hostile)


def admitting(
    config: Config,
    protocol: RowHiding,
    asked: Limits,
    witness: Witness,
    exchanges: int,
    epsilon: float,
) -> Limits:
    """`asked`, with sums that begin with as small a cohort as makes aborts cost next to nothing.

    A cohort that is too small to begin with aborts for all to see, and so tells of a secret draw:
    that costs (1 + e^epsilon) times its probability of delta in every exchange (PRIVACY, section
    4), with the `epsilon` of all rounds. The smallest cohort that is admitted is the largest below
    which a draw falls so rarely that all of it is a thousandth of delta, never below what the
    protocol's promise needs, and never above what its own threshold asks for. A number that is
    configured stays.
    """
    most, least = protocol.begun(asked), protocol.least_admitted(asked)
    if not witness.random or most <= least:
        return asked
    price = (1 + math.exp(min(epsilon, _LARGEST_EPSILON))) * config.run.rounds * exchanges
    rarely = _NEXT_TO_NOTHING * config.privacy.delta / price
    smallest = math.ceil(FEWEST_OF_DECLARED * config.data.clients)
    below = int(stats.binom.ppf(rarely, smallest, witness.rate))
    return replace(asked, admitted=min(most, max(least, below)))
