"""How many clients a run's secure sums hold: as configured, and solved for where aborts cost."""

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
"""A larger epsilon is priced like this one, so that e^epsilon stays a number."""


def configured_limits(config: Config) -> Limits:
    """The limits as configured: by default, sums hold the largest cohort that can be drawn,
    canaries (`audit.canaries`) included.

    Noise that clients share is made up by a guaranteed number of them: all but the `tolerance` of
    a cohort that begins where it comes in layers, else all but that part of an expected cohort.
    """
    secure, sampler, shared = config.secure, config.sampler, config.shared_noise
    if config.by_sites:
        return _limits_of_sites(config)
    everybody = config.data.clients + config.audit.canaries
    capacity = secure.capacity or sampler.capacity() or everybody
    minimum, tolerance = secure.minimum, 1.0
    if shared and shared.layered:
        tolerance = shared.tolerance
    elif shared:
        minimum = minimum or math.ceil((1 - shared.tolerance) * sampler.size - 1e-9)
    arithmetic = secure.simulate == "arithmetic"
    layered = bool(shared and shared.layered)
    return Limits(
        capacity, minimum, arithmetic, tolerance, sampler.size, config.hostile, layered=layered
    )


def _limits_of_sites(config: Config) -> Limits:
    """All sites take part, and their sums have room for the rows of all clients declared.

    As many sites have to stay as configured. By default all but the `tolerance` of the noise that
    sites share, and never fewer than give a secret back.
    """
    secure, data, shared = config.secure, config.data, config.shared_noise
    protocol, sites = config.row_hiding, config.data.sites
    if protocol is None:  # each site's sum is seen by itself
        return Limits(sites, 1, size=sites, sites=sites)
    least = protocol.least_sites(sites)
    staying = sites - math.floor(shared.tolerance * sites + 1e-9) if shared else least
    return Limits(
        capacity=sites,
        minimum=secure.minimum or max(staying, least),
        arithmetic=secure.simulate == "arithmetic",
        size=sites,
        sites=sites,
        colluders=protocol.colluding_sites(sites),
        rows=(data.clients + config.audit.canaries) * data.sites_per_client,
    )


def limits_of_rare_aborts(
    config: Config,
    protocol: RowHiding,
    limits: Limits,
    witness: Witness,
    exchanges: int,
    epsilon: float,
) -> Limits:
    """`limits`, with sums that begin with as small a cohort as makes aborts cost next to nothing.

    A cohort that is too small to begin with aborts for all to see, and so tells of a secret draw:
    that costs (1 + e^epsilon) times its probability of delta in every exchange (PRIVACY, section
    4), with the `epsilon` of all rounds. The smallest cohort that is admitted is the largest below
    which a draw falls so rarely that all of it is a thousandth of delta, never below what the
    protocol's promise needs, and never above what its own threshold asks for. A number that is
    configured stays.
    """
    most, least = protocol.begun(limits), protocol.least_admitted(limits)
    if not witness.random or most <= least:
        return limits
    price = (1 + math.exp(min(epsilon, _LARGEST_EPSILON))) * config.run.rounds * exchanges
    rarely = _NEXT_TO_NOTHING * config.privacy.delta / price
    fewest_clients = math.ceil(FEWEST_OF_DECLARED * config.data.clients)
    below = int(stats.binom.ppf(rarely, fewest_clients, witness.rate))
    return replace(limits, admitted=min(most, max(least, below)))
