"""What is refused of the rule by which cohorts are drawn."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config
from privfed.errors import Refused


def unproven_draw(config: Config) -> Iterator[str]:
    """The sampler cannot draw so, as its witness says."""
    try:
        config.sampler.witness(0, config.data.clients)
    except Refused as refused:
        yield str(refused)


def draw_by_sizes(config: Config) -> Iterator[str]:
    """The draw reads numbers of examples, which are private, or which another part counts too."""
    if not config.sampler.reads_sizes:
        return
    sampler, weights = f"cohort.sampler is {config.names['sampler']!r}", config.aggregation.weights
    if config.mechanism.private:
        yield (
            f"{sampler}, but how many examples a client has is private data; "
            'use "poisson", or privacy.mechanism = "none"'
        )
    elif config.objective.keeps:
        yield (
            f"{sampler}, by size, but with client.objective = "
            f"{config.names['objective']!r} each client's state counts alike, at one sampling "
            'rate; use "poisson"'
        )
    elif weights != "uniform" and not config.rule.robust:
        yield (
            f"{sampler}, by size, and aggregation.weights {weights!r}, which counts "
            'examples twice; use aggregation.weights = "uniform"'
        )
