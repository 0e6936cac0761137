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
        yield from _public_participation(config, canaries)
        yield from _clip_that_follows(config, canaries)
        yield from _places_taken(config, canaries)
        yield from _in_secure_sums(config, canaries)
        yield from _beside_attackers(config, canaries)


def _nothing_claimed(config: Config, canaries: str) -> Iterator[str]:
    """Without privacy there is no claim."""
    if not config.mechanism.private:
        yield (
            f'{canaries}, but with privacy.mechanism = "none" nothing is claimed that they could '
            "test; configure one, or remove the key"
        )


def _wrong_number(config: Config, canaries: str) -> Iterator[str]:
    """There are more canaries than clients, or too few canaries for any evidence."""
    if config.audit.canaries > config.data.clients:
        yield (
            f"{canaries}, more than the {config.data.clients} clients that learn something; "
            "expected at most as many, better a tenth"
        )
    if config.audit.canaries < _FEWEST:
        yield f"{canaries}, too few to say anything; expected at least {_FEWEST}, better 1000"


def _public_participation(config: Config, canaries: str) -> Iterator[str]:
    """Under clients' own noise (`trust`), a guarantee is not about taking part."""
    if config.mechanism.private and config.mechanism.trust == "client":
        yield (
            f"{canaries}, but with privacy.mechanism = {config.names['mechanism']!r} it is public "
            "who takes part, and what is claimed is about somebody's data, not about being there; "
            "test the mechanism alone: privfed audit --mechanism"
        )


def _clip_that_follows(config: Config, canaries: str) -> Iterator[str]:
    """Canaries' rows are long, and the clip follows the lengths of rows (`adaptive`)."""
    if config.mechanism.adaptive:
        yield (
            f"{canaries}, and privacy.adaptive_clip would follow their norms, which are long; set "
            "it to false, or test the mechanism alone: privfed audit --mechanism"
        )


def _places_taken(config: Config, canaries: str) -> Iterator[str]:
    """A cohort has so many places (`shares_places`, as declared or as its witness shows)."""
    sampler = config.sampler
    if sampler.shares_places or sampler.witness(0, config.data.clients).shares_places:
        yield (
            f"{canaries}, but under cohort.sampler = {config.names['sampler']!r} they would take "
            'places of real clients, and change the sampling rate; use "poisson", "full" or '
            '"cyclic"'
        )


def _in_secure_sums(config: Config, canaries: str) -> Iterator[str]:
    """Aborts are charged, and shared noise is counted, for real clients."""
    if config.secured:
        yield (
            f"{canaries}, and under secure.protocol = {config.names['protocol']!r} how often a sum "
            "aborts is charged for cohorts of real clients, and the noise that made-up ones add "
            'is known to who made them up; use secure.protocol = "none", or test the mechanism '
            "alone: privfed audit --mechanism"
        )


def _beside_attackers(config: Config, canaries: str) -> Iterator[str]:
    """Runs with simulated attackers claim nothing."""
    if config.attacked:
        yield f"{canaries}, and there are attackers, whose runs claim nothing; use one of the two"
