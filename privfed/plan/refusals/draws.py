"""What is refused of the rule by which cohorts are drawn."""

from __future__ import annotations

from collections.abc import Iterator

from accounting.over_rounds import RandomAllocation
from privfed.config.config import Config
from privfed.errors import Refused
from privfed.privacy.solved_for_run import InBands


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
    elif config.objective.sums_states:
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


def secret_slots(config: Config) -> Iterator[str]:
    """A slot of every epoch is a secret from readers, and some of what runs beside it tells it."""
    release = release_of_draw(config)
    if not isinstance(release, RandomAllocation) or not config.mechanism.private:
        return
    sampler = f"cohort.sampler = {config.names['sampler']!r}"
    if config.mechanism.trust != "server":
        yield (
            f"{sampler} amplifies what readers of the releases see, by noise that the server adds, "
            f"and privacy.mechanism = {config.names['mechanism']!r} protects from a server who "
            'knows the slots; use privacy.mechanism = "gaussian", or a draw that is no secret: '
            '"cyclic"'
        )
    if config.run.simulation_metrics:
        yield (
            f"{sampler}, and run.simulation_metrics publishes what each cohort did: who knows when "
            "all others took part reads a client's slot from that; set it to false, or use "
            '"cyclic"'
        )
    if config.secured and (release.groups > 1 or isinstance(config.mechanism, InBands)):
        yield (
            f"{sampler} in groups, whose cohorts are as large as a group makes them, and how "
            "likely a secure sum aborts is proved for clients that all enter alike; use "
            'cohort.groups = 1 and privacy.mechanism = "gaussian", or secure.protocol = "none"'
        )


def release_of_draw(config: Config) -> object:
    """What a draw makes of a Gaussian release; None where that is refused elsewhere."""
    try:
        return config.sampler.witness(0, config.data.clients).release
    except Refused:
        return None
