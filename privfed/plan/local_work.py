"""How far clients train in a round, and how the server follows, as far as a run file says."""

from __future__ import annotations

from privfed.config.config import Config


def most_steps(config: Config) -> int:
    """The local steps that a client takes at most in a round; 0 where its examples say that."""
    if config.example_privacy:
        return config.example_privacy.steps(config.client.epochs)
    return config.client.steps


def adds_updates(config: Config) -> bool:
    """Whether the next model is always the model plus the aggregate, as it is."""
    schedule, rounds = config.server_schedule, range(1, config.run.rounds + 1)
    plain = config.optimizer.plain and not config.optimizer.in_client_rates
    return plain and all(schedule.factor(round) == 1.0 for round in rounds)
