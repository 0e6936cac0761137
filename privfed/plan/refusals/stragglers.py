"""What is refused of simulated clients that do less work than others."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config


def nothing_to_shorten(config: Config) -> Iterator[str]:
    """Stragglers do fewer epochs, and nobody does more than one."""
    if config.client.stragglers and config.client.epochs == 1:
        yield (
            f"client.stragglers is {config.client.stragglers}, but client.epochs is 1, which "
            "leaves nothing to shorten; raise client.epochs or remove the key"
        )


def nobody_to_drop(config: Config) -> Iterator[str]:
    """Stragglers are dropped, and nobody or everybody is one."""
    if config.client.drop_stragglers and not 0.0 < config.client.stragglers < 1.0:
        yield (
            f"client.drop_stragglers is true, but client.stragglers is {config.client.stragglers}, "
            "which leaves nobody to drop, or nobody else; set it between 0 and 1"
        )
