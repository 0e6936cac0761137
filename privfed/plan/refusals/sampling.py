"""Refusals about the sampling of cohorts, user-level privacy, and canaries."""

from __future__ import annotations

from collections.abc import Iterator

from accounting.over_rounds import RandomAllocation
from accounting.releases import PoissonSampled, TruncatedPoisson, WithoutReplacement
from defenses.types import RowRule
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.privacy.noise_on_model import InBands
from privfed.sampling.cohort import draws_of


def unproven_objective(config: Config) -> Iterator[str]:
    """Yields a refusal of an objective that has no proof under privacy, as `unproven` declares."""
    objective = config.objective
    if config.mechanism.private and objective.unproven:
        yield (
            f"client.objective = {config.names['objective']!r} has no proof under privacy, because "
            f'{objective.unproven}; use another objective, or privacy.mechanism = "none"'
        )


def adaptive_clip_of_absent_clients(config: Config) -> Iterator[str]:
    """Yields a refusal of adaptive clipping if clients may be absent: it would miscount them."""
    absent = (
        config.availability.varies or config.client.drop_stragglers or config.cohort.dropout > 0
    )
    if config.mechanism.adaptive and absent:
        yield (
            "privacy.adaptive_clip is true, but each client that does not answer counts as half a "
            "client within the clip, so the clip may grow without bound; set cohort.availability = "
            '"always", cohort.dropout = 0 and client.drop_stragglers = false, or a fixed clip'
        )


def weights_by_private_sizes(config: Config) -> Iterator[str]:
    """Yields a refusal of weights by examples under privacy: no noise protects these numbers."""
    if config.mechanism.private and config.aggregation.weights == "examples":
        yield (
            'aggregation.weights is "examples", but under privacy a client\'s number of examples '
            'is private data and would be sent unprotected; use "uniform" or "auto"'
        )


_FEWEST = 20
"""Minimum number of canaries; fewer have almost no power to refute a claim."""


def canary_refusals(config: Config) -> Iterator[str]:
    """Yields every reason why canaries could not test this run's claim, or would change the run."""
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
    """Yields a refusal of canaries without a private mechanism: there is no claim to test."""
    if not config.mechanism.private:
        yield (
            f'{canaries}, but with privacy.mechanism = "none" there is no claim to test; set '
            "privacy.mechanism, or remove audit.canaries"
        )


def _wrong_number(config: Config, canaries: str) -> Iterator[str]:
    """Yields a refusal of fewer than `_FEWEST` canaries.

    (`privfed check` reports the cost of many canaries.)
    """
    if config.audit.canaries < _FEWEST:
        yield (
            f"{canaries}, but so few canaries cannot refute a claim; expected at least {_FEWEST}, "
            "better 1000"
        )


def _unknown_places(config: Config, canaries: str) -> Iterator[str]:
    """Yields a refusal of canaries that would take clients' places in a cohort, if the sampler's
    event has no proof for that.
    """
    sampler = config.sampler
    witness = sampler.witness(0, config.data.clients)
    if sampler.shares_places and not witness.shares_places:
        yield (
            f"{canaries}, but under cohort.sampler = {config.names['sampler']!r} canaries would "
            "take the places of real clients, for which the sampler's event is not proved; use "
            f"{draws_of(PoissonSampled, WithoutReplacement, TruncatedPoisson)}"
        )


def _sites_elsewhere(config: Config, canaries: str) -> Iterator[str]:
    """Yields a refusal of canaries at remote sites, which accept only their own clients."""
    if config.at_remote_sites:
        yield (
            f"{canaries}, but clients are at sites on machines of their own (data.site_partition = "
            '"elsewhere"), which accept rows from no other client; simulate the sites in one '
            "process, or test only the mechanism by `privfed audit --mechanism`"
        )


def _full_sums(config: Config, canaries: str) -> Iterator[str]:
    """Yields a refusal if all clients and canaries take part, but exceed `secure.capacity`."""
    witness, capacity = config.sampler.witness(0, config.data.clients), config.secure.capacity
    all_clients = config.data.clients + config.audit.canaries
    if capacity and not witness.random and not witness.shares_places and capacity < all_clients:
        yield (
            f"{canaries}, which all take part in each sum with {config.data.clients} clients, but "
            f"secure.capacity is {capacity}; set it to {all_clients} or more, or leave it out"
        )


def _with_attackers(config: Config, canaries: str) -> Iterator[str]:
    """Yields a refusal if the run simulates attackers, since canaries have no claim to test then.

    The run has canaries; `canaries` states them at the start of the message.
    """
    if config.has_attackers:
        yield (
            f"{canaries}, but runs with attackers (attack.fraction) have no claim to test; remove "
            "audit.canaries or the attack"
        )


def _not_as_others_train(config: Config, canaries: str) -> Iterator[str]:
    """Yields refusals of canaries that train on examples, if they would differ from other clients.

    They differ if clients keep state, have ledgers of their own or rows at several sites, or if the
    clipping norm is adaptive.
    """
    instead = 'use audit.kind = "update"'
    if config.keeping:
        yield (
            f"{canaries}, but {config.keeping} has clients keep state between rounds, which "
            f"canaries cannot; {instead}"
        )
    if config.example_privacy:
        yield (
            f"{canaries}, but with client.privacy each silo has a ledger of its own, which a "
            f"canary does not have; {instead}"
        )
    if config.data.sites_per_client > 1:
        yield (
            f"{canaries}, but data.sites_per_client is {config.data.sites_per_client}, and a "
            f"canary has examples at only one site; {instead}"
        )
    if config.mechanism.adaptive:
        yield (
            f"{canaries}, but the canaries' updates have large norms, to which "
            f"privacy.adaptive_clip would adapt; set privacy.adaptive_clip to false, or {instead}"
        )


def unproven_draw(config: Config) -> Iterator[str]:
    """Yields a refusal of a sampler without a proof for this population (`Sampler.witness`)."""
    try:
        config.sampler.witness(0, config.data.clients)
    except Refused as refused:
        yield str(refused)


def draw_by_sizes(config: Config) -> Iterator[str]:
    """Yields a refusal of sampling by size if another part of the run excludes it.

    Sizes are private under privacy, some objectives need equal sampling rates, and weights other
    than uniform would count examples twice.
    """
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
            f"{sampler}, which samples by size, but client.objective = "
            f"{config.names['objective']!r} needs the same sampling rate for all clients; use "
            '"poisson"'
        )
    elif weights != "uniform" and not config.rule.robust:
        yield (
            f"{sampler}, which samples by size, but aggregation.weights is {weights!r}, so "
            'examples would count twice; use aggregation.weights = "uniform"'
        )


def earlier_models(config: Config) -> Iterator[str]:
    """Yields every reason why clients cannot train earlier models, as sampler or sites require."""
    rounds, delay = config.sampler.largest_staleness(), max(config.data.site_delays, default=0)
    if rounds:
        name = config.names["sampler"]
        late = f"cohort.sampler is {name!r}, by which clients train models of up to {rounds} rounds"
        reasons = (*_read_at_the_current_model(config), *_other_releases_of_silos(config))
        yield from (f"{late} ago, but {each}, or a sampler of current models" for each in reasons)
    if config.data.site_delays:
        yield from _impossible_delays(config)
    if delay:
        late = f"data.site_delays is {config.data.site_delays}, so sites train models of up to"
        reasons = (*_read_at_the_current_model(config), *_delays_without_sites(config, rounds))
        yield from (
            f"{late} {delay} rounds ago, but {each}, or remove data.site_delays" for each in reasons
        )


def _impossible_delays(config: Config) -> Iterator[str]:
    """Yields refusals of delays for another number of sites, or of sites that never contribute."""
    delays, sites, rounds = config.data.site_delays, config.data.sites, config.run.rounds
    if len(delays) != sites:
        yield (
            f"data.site_delays has {len(delays)} entries, but data.sites is {sites}; state a delay "
            "for each site, 0 for a site without any"
        )
    if max(delays) >= rounds:
        yield (
            f"data.site_delays is {delays}, but run.rounds is {rounds}, so a site of delay "
            f"{max(delays)} would have no rows in any round; lower its delay, or raise run.rounds"
        )


def _delays_without_sites(config: Config, rounds: int) -> Iterator[str]:
    """Yields refusals of delays if sites are not the parties, or `rounds` delays of clients."""
    if not (config.by_sites and config.secured):
        yield (
            "sites are not the parties of secure sums; set "
            'secure.protocol = "masks" and secure.parties = "sites"'
        )
    if rounds:
        yield f'cohort.sampler = {config.names["sampler"]!r} has delays of its own; use "poisson"'
    if config.evaluation_rounds.every:
        yield (
            'evaluation.by = "clients" has sites evaluate while they train, so that the time of an '
            'answer could depend on clients of a later round; use evaluation.by = "test"'
        )
    if config.example_privacy:
        yield (
            f"client.privacy.mechanism = {config.names['client_mechanism']!r} charges each silo "
            'for its examples, which is not proved for earlier models; use "none"'
        )


def _read_at_the_current_model(config: Config) -> Iterator[str]:
    """Yields what depends on the current model or on earlier rounds, and what to use instead."""
    names, rule = config.names, config.rule
    if config.keeping or config.objective.personalises:
        setting = config.keeping or f"client.objective = {names['objective']!r}"
        yield (
            f"{setting} keeps values of each client that fit the current model; use "
            'client.objective = "sgd" without model.local and error feedback'
        )
    elif not config.objective.needs_only_the_model:
        yield (
            f"client.objective = {names['objective']!r} computes from the model of one round; use "
            '"sgd"'
        )
    if config.compression.compresses:
        yield (
            f"compression.name = {names['compression']!r} encodes updates by values of one round; "
            'use "none"'
        )
    if rule.uploads > 1 or rule.remembers or _compares_with_the_model(rule):
        yield (
            f"aggregation.rule = {names['rule']!r} relates rows to the current model, an earlier "
            'aggregate or several uploads; use "mean"'
        )
    if config.mechanism.adaptive:
        yield (
            "privacy.adaptive_clip follows the norms of rows of one model; set "
            "privacy.adaptive_clip to false"
        )


def _compares_with_the_model(rule: object) -> bool:
    """Whether a rule on rows reads other values than rows, layers and randomness."""
    return isinstance(rule, RowRule) and not rule.needs() <= {"generator", "layers"}


def _other_releases_of_silos(config: Config) -> Iterator[str]:
    """Yields refusals of silos with a ledger of their own, and of remote sites."""
    if config.example_privacy:
        yield (
            f"client.privacy.mechanism = {config.names['client_mechanism']!r} charges each silo "
            "for its examples, which is not proved for earlier models; use "
            'client.privacy.mechanism = "none"'
        )
    if config.at_remote_sites:
        yield (
            'data.site_partition = "elsewhere" has sites on other machines, which train the model '
            "that they are asked about; simulate the clients in one process"
        )


def secret_slots(config: Config) -> Iterator[str]:
    """Yields every reason why secret slots (random allocation) have no proof under privacy.

    The server must add the noise, and `run.simulation_metrics` must be false. With a secure sum,
    there must be no groups or bands, for which its abort probability is not proved.
    """
    release = release_of_draw(config)
    if not isinstance(release, RandomAllocation) or not config.mechanism.private:
        return
    sampler = f"cohort.sampler = {config.names['sampler']!r}"
    if config.mechanism.trust != "server":
        yield (
            f"{sampler} amplifies privacy only against readers of the releases, who do not know "
            f"the slots, but privacy.mechanism = {config.names['mechanism']!r} also protects "
            'against the server, which knows them; use privacy.mechanism = "gaussian", or a '
            'sampler without a secret cohort: "cyclic"'
        )
    if config.run.simulation_metrics:
        yield (
            f"{sampler} needs secret slots, but run.simulation_metrics publishes metrics of each "
            "cohort, from which an adversary that knows all other clients' slots can infer a "
            'client\'s slot; set run.simulation_metrics to false, or use "cyclic"'
        )
    if config.secured and (release.groups > 1 or isinstance(config.mechanism, InBands)):
        yield (
            f"{sampler} has groups here, but the abort probability of a secure sum is proved only "
            "for equally distributed cohorts, and their sizes differ between groups; use "
            'cohort.groups = 1 and privacy.mechanism = "gaussian", or secure.protocol = "none"'
        )


def release_of_draw(config: Config) -> object:
    """Returns the `Release` in the sampler's proof (`Witness.release`), stated for Gaussian noise.

    None if the sampler refuses the population, or has no proof.
    """
    try:
        return config.sampler.witness(0, config.data.clients).release
    except Refused:
        return None
