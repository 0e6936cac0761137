"""The size limits of a run's secure sums: as configured, or chosen if aborts cost privacy."""

from __future__ import annotations

import math
from dataclasses import replace

from privfed.config.config import Config
from privfed.core.deferred import stats
from privfed.sampling.cohort import Witness
from privfed.secure.aborts import LEAST_DECLARED_SHARE
from privfed.secure.encoded_sum import SecureProtocol
from privfed.secure.limits import Limits

_NEXT_TO_NOTHING = 1e-3
"""The fraction of delta that aborts may cost, if the protocol permits such a limit."""
_LARGEST_EPSILON = 40.0
"""Largest epsilon with which the cost of aborts is computed, so that e^epsilon is finite."""


def configured_limits(config: Config) -> Limits:
    """Returns the configured limits of a run's sums.

    By default, the capacity of a sum is the largest possible cohort, canaries included. Distributed
    noise by default needs as survivors all clients except a fraction `privacy.tolerance`. The
    fraction is of the clients that began the sum if noise is added in layers, otherwise of the
    expected cohort.
    """
    secure, sampler, shared = config.secure, config.sampler, config.shared_noise
    if config.by_sites:
        return _limits_of_sites(config)
    all_clients = config.data.clients + config.audit.canaries
    capacity = secure.capacity or sampler.capacity() or all_clients
    minimum, tolerance = secure.minimum, 1.0
    if shared and shared.layered:
        tolerance = shared.tolerance
    elif shared:
        minimum = minimum or math.ceil((1 - shared.tolerance) * sampler.size - 1e-9)
    arithmetic = secure.simulate == "arithmetic"
    layered = bool(shared and shared.layered)
    return Limits(
        capacity, minimum, arithmetic, tolerance, sampler.size, config.byzantine, layered=layered
    )


def _limits_of_sites(config: Config) -> Limits:
    """Returns the limits if sites are the parties: all sites take part in each sum.

    The default of the minimum number of surviving sites is the number of shares that reconstruct a
    secret. For distributed noise the default is at least all sites except a fraction
    `privacy.tolerance`. A protocol that needs equally many survivors of each part of the sites
    rounds the minimum up.
    """
    secure, data, shared = config.secure, config.data, config.shared_noise
    protocol, sites = config.row_hiding, config.data.sites
    if protocol is None:  # each site's sum is visible
        return Limits(sites, 1, size=sites, sites=sites)
    tolerance = shared.tolerance if shared else 1.0
    limits = Limits(
        capacity=sites,
        minimum=secure.minimum or protocol.surviving_sites(sites, tolerance),
        arithmetic=secure.simulate == "arithmetic",
        size=sites,
        sites=sites,
        colluders=protocol.colluding_sites(sites),
        rows=(data.clients + config.audit.canaries) * data.sites_per_client,
    )
    return replace(limits, minimum=protocol.fewest(limits))


def limits_of_rare_aborts(
    config: Config,
    protocol: SecureProtocol,
    limits: Limits,
    witness: Witness,
    exchanges: int,
    epsilon: float,
) -> Limits:
    """Returns `limits` whose smallest admitted cohort makes the cost of aborts negligible.

    A cohort that is too small aborts visibly, and so reveals something about the secret sampling.
    In every exchange, (1 + e^epsilon) times the probability of such an abort is added to delta,
    with the `epsilon` of all rounds (rules of proof, section 4). The smallest admitted cohort is
    the largest size for which the total over all rounds is at most a thousandth of delta. That size
    is at least the size that the protocol's guarantee needs, and at most the size that the
    protocol's threshold requires. A configured size is not changed.

    Args:
      config: the run.
      protocol: the secure sum.
      limits: the configured limits.
      witness: the sampling rule.
      exchanges: the number of sums per round.
      epsilon: the epsilon of all rounds.
    """
    most, least = protocol.least_cohort(limits), protocol.least_admitted(limits)
    if not witness.random or most <= least:
        return limits
    price = (1 + math.exp(min(epsilon, _LARGEST_EPSILON))) * config.run.rounds * exchanges
    rarely = _NEXT_TO_NOTHING * config.privacy.delta / price
    fewest_clients = math.ceil(LEAST_DECLARED_SHARE * config.data.clients)
    below = int(stats.binom.ppf(rarely, fewest_clients, witness.rate))
    return replace(limits, admitted=min(most, max(least, below)))
