"""What is refused because whole clients are protected, whatever the rule and the protocol."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config


def unproven_objective(config: Config) -> Iterator[str]:
    """The objective declares why it has no proof under privacy."""
    objective = config.objective
    if config.mechanism.private and objective.unproven:
        yield (
            f"client.objective = {config.names['objective']!r} has no proof under privacy: "
            f'{objective.unproven}; use another objective, or privacy.mechanism = "none"'
        )


def adaptive_clip_of_absent_clients(config: Config) -> Iterator[str]:
    """The clip follows a count of clients, and who is absent is miscounted in it."""
    absent = (
        config.availability.varies or config.client.drop_stragglers or config.cohort.dropout > 0
    )
    if config.mechanism.adaptive and absent:
        yield (
            "privacy.adaptive_clip takes who does not answer for one half within the clip, so that "
            'it would grow without end; set cohort.availability = "always", cohort.dropout = 0 and '
            "client.drop_stragglers = false, or a fixed clip"
        )


def weights_by_private_sizes(config: Config) -> Iterator[str]:
    """Rows weigh as many as their client's examples, a number that no noise would cover."""
    if config.mechanism.private and config.aggregation.weights == "examples":
        yield (
            'aggregation.weights is "examples", but under privacy example counts are private data '
            'and would leave unprotected; use "uniform" or "auto"'
        )
