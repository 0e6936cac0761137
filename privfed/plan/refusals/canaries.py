"""What is refused of canaries among the clients, by which a run tests its own guarantee."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config

_FEWEST = 20
"""Fewer canaries can refute hardly any claim."""


def canary_refusals(config: Config) -> Iterator[str]:
    """Every reason why this run's canaries could test nothing, or would change the run."""
    if config.audit.canaries:
        canaries = f"audit.canaries is {config.audit.canaries}"
        yield from _nothing_claimed(config, canaries)
        yield from _wrong_number(config, canaries)
        yield from _unknown_places(config, canaries)
        yield from _sites_elsewhere(config, canaries)
        yield from _full_sums(config, canaries)
        yield from _beside_attackers(config, canaries)
        if config.audit.by_inputs:
            yield from _not_as_others_train(config, f'{canaries} with audit.kind = "input"')


def _nothing_claimed(config: Config, canaries: str) -> Iterator[str]:
    """Without privacy there is no claim."""
    if not config.mechanism.private:
        yield (
            f'{canaries}, but with privacy.mechanism = "none" nothing is claimed that they could '
            "test; configure one, or remove the key"
        )


def _wrong_number(config: Config, canaries: str) -> Iterator[str]:
    """There are too few canaries for any evidence; of too many, `check` says what they cost."""
    if config.audit.canaries < _FEWEST:
        yield f"{canaries}, too few to say anything; expected at least {_FEWEST}, better 1000"


def _unknown_places(config: Config, canaries: str) -> Iterator[str]:
    """A cohort has so many places (`shares_places`), and no event says what taking one costs."""
    sampler = config.sampler
    witness = sampler.witness(0, config.data.clients)
    if sampler.shares_places and not witness.shares_places:
        yield (
            f"{canaries}, but under cohort.sampler = {config.names['sampler']!r} they would take "
            "places of real clients, and its event is none that is proved for that; use "
            '"poisson", "fixed_size" or "truncated_poisson"'
        )


def _sites_elsewhere(config: Config, canaries: str) -> Iterator[str]:
    """Clients are at sites on machines of their own, and so are all rows."""
    if config.apart:
        yield (
            f"{canaries}, but clients are at sites on machines of their own "
            '(data.site_partition = "elsewhere"), which take rows from nobody else; simulate the '
            "sites in one process, or test the mechanism alone: privfed audit --mechanism"
        )


def _full_sums(config: Config, canaries: str) -> Iterator[str]:
    """Everybody takes part in a secure sum, and it has no room for canaries, too."""
    witness, capacity = config.sampler.witness(0, config.data.clients), config.secure.capacity
    everybody = config.data.clients + config.audit.canaries
    if capacity and not witness.random and not witness.shares_places and capacity < everybody:
        yield (
            f"{canaries}, and all take part with {config.data.clients} clients in each sum, "
            f"but secure.capacity is {capacity}; expected at least {everybody}, or leave it out"
        )


def _beside_attackers(config: Config, canaries: str) -> Iterator[str]:
    """Runs with simulated attackers claim nothing."""
    if config.attacked:
        yield f"{canaries}, and there are attackers, whose runs claim nothing; use one of the two"


def _not_as_others_train(config: Config, canaries: str) -> Iterator[str]:
    """Canaries that train do so as clients do who keep nothing and have one row."""
    instead = 'use audit.kind = "update"'
    if config.keeping:
        yield (
            f"{canaries}, and {config.keeping} has clients "
            f"remember something between rounds, for which made-up ones have no file; {instead}"
        )
    if config.example_privacy:
        yield (
            f"{canaries}, and client.privacy charges each silo's own ledger, which a made-up one "
            f"has not; {instead}"
        )
    if config.data.sites_per_client > 1:
        yield (
            f"{canaries}, and a client's examples may lie at several sites "
            f"(data.sites_per_client); {instead}"
        )
    if config.mechanism.adaptive:
        yield (
            f"{canaries}, whose updates are crafted to be long, and privacy.adaptive_clip would "
            f"follow them; set it to false, or {instead}"
        )
