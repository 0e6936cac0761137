"""Refusals about the sampling of cohorts, user-level privacy, and canaries."""

from __future__ import annotations

from collections.abc import Iterator

from accounting.over_rounds import RandomAllocation
from accounting.releases import PoissonSampled, TruncatedPoisson, WithoutReplacement
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.privacy.noise_on_model import InBands
from privfed.sampling.cohort import draws_of


def unproven_objective(config: Config) -> Iterator[str]:
    """The objective declares why it has no proof under privacy."""
    objective = config.objective
    if config.mechanism.private and objective.unproven:
        yield (
            f"client.objective = {config.names['objective']!r} has no proof under privacy, because "
            f'{objective.unproven}; use another objective, or privacy.mechanism = "none"'
        )


def adaptive_clip_of_absent_clients(config: Config) -> Iterator[str]:
    """The clipping norm follows a count of clients, in which absent clients are miscounted."""
    absent = (
        config.availability.varies or config.client.drop_stragglers or config.cohort.dropout > 0
    )
    if config.mechanism.adaptive and absent:
        yield (
            "privacy.adaptive_clip is true, but a client that does not answer counts as half "
            "within the clip, so that the clip would grow without bound; set cohort.availability = "
            '"always", cohort.dropout = 0 and client.drop_stragglers = false, or a fixed clip'
        )


def weights_by_private_sizes(config: Config) -> Iterator[str]:
    """Rows are weighted by numbers of examples, which no noise would protect."""
    if config.mechanism.private and config.aggregation.weights == "examples":
        yield (
            'aggregation.weights is "examples", but under privacy a client\'s number of examples '
            'is private data and would be sent unprotected; use "uniform" or "auto"'
        )


_FEWEST = 20
"""The smallest number of canaries that can refute a claim with reasonable probability."""


def canary_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why this run's canaries could test nothing, or would change the run."""
    if config.audit.canaries:
        canaries = f"audit.canaries is {config.audit.canaries}"
        yield from _nothing_claimed(config, canaries)
        yield from _wrong_number(config, canaries)
        yield from _unknown_places(config, canaries)
        yield from _sites_elsewhere(config, canaries)
        yield from _full_sums(config, canaries)
        yield from _with_attackers(config, canaries)
        if config.audit.by_inputs:
            yield from _not_as_others_train(config, f'{canaries} with audit.kind = "input"')


def _nothing_claimed(config: Config, canaries: str) -> Iterator[str]:
    """Without privacy there is no claim."""
    if not config.mechanism.private:
        yield (
            f'{canaries}, but with privacy.mechanism = "none" there is no claim to test; set '
            "privacy.mechanism, or remove the key"
        )


def _wrong_number(config: Config, canaries: str) -> Iterator[str]:
    """There are too few canaries for any evidence; `check` reports the cost of too many."""
    if config.audit.canaries < _FEWEST:
        yield (
            f"{canaries}, but so few can refute no claim; expected at least {_FEWEST}, better 1000"
        )


def _unknown_places(config: Config, canaries: str) -> Iterator[str]:
    """The cohort size is capped (`shares_places`), and no event covers displaced clients."""
    sampler = config.sampler
    witness = sampler.witness(0, config.data.clients)
    if sampler.shares_places and not witness.shares_places:
        yield (
            f"{canaries}, but under cohort.sampler = {config.names['sampler']!r} canaries would "
            "take the places of real clients, for which the sampler's event is not proved; use "
            f"{draws_of(PoissonSampled, WithoutReplacement, TruncatedPoisson)}"
        )


def _sites_elsewhere(config: Config, canaries: str) -> Iterator[str]:
    """Clients, and all rows, are at sites on machines of their own."""
    if config.apart:
        yield (
            f"{canaries}, but clients are at sites on machines of their own (data.site_partition = "
            '"elsewhere"), which accept rows from no other client; simulate the sites in one '
            "process, or test only the mechanism by `privfed audit --mechanism`"
        )


def _full_sums(config: Config, canaries: str) -> Iterator[str]:
    """All clients take part in a secure sum, which has no room for canaries."""
    witness, capacity = config.sampler.witness(0, config.data.clients), config.secure.capacity
    all_clients = config.data.clients + config.audit.canaries
    if capacity and not witness.random and not witness.shares_places and capacity < all_clients:
        yield (
            f"{canaries} that all take part with {config.data.clients} clients in each sum, "
            f"but secure.capacity is {capacity}; expected at least {all_clients}, or leave it out"
        )


def _with_attackers(config: Config, canaries: str) -> Iterator[str]:
    """Runs with simulated attackers have no guarantee to test."""
    if config.attacked:
        yield (
            f"{canaries}, but runs with attackers (attack.fraction) have no claim to test; remove "
            "the canaries or the attack"
        )


def _not_as_others_train(config: Config, canaries: str) -> Iterator[str]:
    """Input canaries train as clients that keep no state and have one row."""
    instead = 'use audit.kind = "update"'
    if config.keeping:
        yield (
            f"{canaries}, but {config.keeping} has clients keep state between rounds, which "
            f"canaries cannot; {instead}"
        )
    if config.example_privacy:
        yield (
            f"{canaries}, but client.privacy charges each silo's own ledger, which canaries lack; "
            f"{instead}"
        )
    if config.data.sites_per_client > 1:
        yield (
            f"{canaries}, but a client's examples may be at several sites "
            f"(data.sites_per_client); {instead}"
        )
    if config.mechanism.adaptive:
        yield (
            f"{canaries}, but their updates have large norms, to which privacy.adaptive_clip would "
            f"adapt; set privacy.adaptive_clip to false, or {instead}"
        )


def unproven_draw(config: Config) -> Iterator[str]:
    """The sampler's witness refuses this sampling."""
    try:
        config.sampler.witness(0, config.data.clients)
    except Refused as refused:
        yield str(refused)


def draw_by_sizes(config: Config) -> Iterator[str]:
    """Sampling uses numbers of examples, which are private, or counted by another part too."""
    if not config.sampler.reads_sizes:
        return
    sampler, weights = f"cohort.sampler is {config.names['sampler']!r}", config.aggregation.weights
    if config.mechanism.private:
        yield (
            f'{sampler}, but a client\'s number of examples is private data; use "poisson", or '
            'privacy.mechanism = "none"'
        )
    elif config.objective.sums_states:
        yield (
            f"{sampler}, which samples by size, but with client.objective = "
            f"{config.names['objective']!r} each client's state counts equally, at one sampling "
            'rate; use "poisson"'
        )
    elif weights != "uniform" and not config.rule.robust:
        yield (
            f"{sampler}, which samples by size, but aggregation.weights is {weights!r}, so that "
            'examples would count twice; use aggregation.weights = "uniform"'
        )


def secret_slots(config: Config) -> Iterator[str]:
    """The slots of an epoch must be secret from readers, and another part reveals them."""
    release = release_of_draw(config)
    if not isinstance(release, RandomAllocation) or not config.mechanism.private:
        return
    sampler = f"cohort.sampler = {config.names['sampler']!r}"
    if config.mechanism.trust != "server":
        yield (
            f"{sampler} amplifies privacy against readers of the releases, with noise that the "
            f"server adds, but privacy.mechanism = {config.names['mechanism']!r} protects from "
            'a server that knows the slots; use privacy.mechanism = "gaussian", or a sampler '
            'without a secret cohort: "cyclic"'
        )
    if config.run.simulation_metrics:
        yield (
            f"{sampler}, but run.simulation_metrics publishes metrics of each cohort, from which "
            "an adversary that knows all other clients' slots can infer a client's slot; set "
            'run.simulation_metrics to false, or use "cyclic"'
        )
    if config.secured and (release.groups > 1 or isinstance(config.mechanism, InBands)):
        yield (
            f"{sampler} in groups, but the abort probability of a secure sum is proved only if all "
            "clients are sampled alike, and cohorts vary with the group's size; use cohort.groups "
            '= 1 and privacy.mechanism = "gaussian", or secure.protocol = "none"'
        )


def release_of_draw(config: Config) -> object:
    """Returns the release that sampling makes of a Gaussian one; None if refused elsewhere."""
    try:
        return config.sampler.witness(0, config.data.clients).release
    except Refused:
        return None
