"""What is refused of learning rates over the rounds."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config


def rates_of_zero(config: Config) -> Iterator[str]:
    """A schedule has reached zero before the last round."""
    schedules = {"client": config.client_schedule, "server": config.server_schedule}
    for section, schedule in schedules.items():
        if schedule.factor(config.run.rounds) == 0.0:
            yield (
                f"{section}.schedule has reached a rate of 0 by round {config.run.rounds}: rounds "
                "that learn nothing would be run, and paid for; let it last longer, or lower "
                "run.rounds"
            )
