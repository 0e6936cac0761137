"""What is refused of noise that clients share within a round, beside the rows that carry it."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config


def joint_noise_refusals(config: Config) -> Iterator[str]:
    """Every reason why clients cannot share noise (`mechanism.joint`) here."""
    if config.joint_noise is None:
        return
    mechanism = f"privacy.mechanism = {config.names['mechanism']!r}"
    yield from _draws(config, mechanism)
    yield from _hidden_rows(config, mechanism)
    yield from _sites(config, mechanism)
    yield from _canaries(config, mechanism)
    yield from _evaluations(config, mechanism)


def _draws(config: Config, mechanism: str) -> Iterator[str]:
    """Whoever draws could tell a client of colluders alone, whose noise they know."""
    witness = config.sampler.witness(0, config.data.clients)
    if witness.random or witness.rate < 1:
        yield (
            f"{mechanism} is proved for rounds in which all clients take part, and cohort.sampler "
            f"is {config.names['sampler']!r}: whoever draws could tell a client of a cohort of "
            'colluders, who know all that it shares with them; use "full"'
        )


def _hidden_rows(config: Config, mechanism: str) -> Iterator[str]:
    """The noise is for rows that are seen, and a protocol shows none."""
    if config.secured:
        yield (
            f"{mechanism} protects rows that the server sees, and secure.protocol = "
            f'{config.names["protocol"]!r} shows none; use secure.protocol = "none", or noise that '
            'is made up in a sum: privacy.mechanism = "skellam"'
        )


def _sites(config: Config, mechanism: str) -> Iterator[str]:
    """Clients are the parties, each of which has secrets with all others."""
    if config.by_sites:
        yield (
            f"{mechanism} is proved for clients who share secrets, not for sites that hold many; "
            'use secure.parties = "clients", or privacy.mechanism = "local_gaussian"'
        )


def _canaries(config: Config, mechanism: str) -> Iterator[str]:
    """A canary that is left out leaves the noise that it shares, by which one sees it missing."""
    if config.audit.canaries:
        yield (
            f"audit.canaries is {config.audit.canaries}, and under {mechanism} everybody shares "
            "noise with everybody who is there: a canary that is left out changes all rows; remove "
            "the key, and test the mechanism alone: privfed audit --mechanism"
        )


def _evaluations(config: Config, mechanism: str) -> Iterator[str]:
    """Measures of clients are summed over a constant, and rows that share noise are averaged."""
    if config.evaluation_rounds.every:
        yield (
            f'evaluation.by is "clients", whose measures are summed, and {mechanism} is for rows '
            'that a rule averages; use evaluation.by = "test"'
        )
