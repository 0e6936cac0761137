"""What is refused of local objectives that would silently do something else than they are for."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config
from privfed.plan.local_work import adds_updates, most_steps


def objective_refusals(config: Config) -> Iterator[str]:
    """Every reason why the objective would lose what it is for."""
    yield from _models_beside_the_server(config)
    yield from _steps_for_nothing(config)


def _models_beside_the_server(config: Config) -> Iterator[str]:
    """Models move by themselves (`server_step`), and the run's model would be none of them."""
    if config.objective.server_step == "only_plain" and not adds_updates(config):
        rate = getattr(config.optimizer, "lr", None)
        at_rate = "" if rate is None else f"server.lr = {rate!r}, "
        yield (
            f"client.objective = {config.names['objective']!r} moves the models that clients are "
            "sent by their members' mean updates, but server.optimizer = "
            f"{config.names['optimizer']!r} ({at_rate}server.schedule = "
            f"{config.names['server_schedule']!r}) would move the run's model otherwise, so that "
            'it were none of them; set server.optimizer = "fedavg" and server.lr = 1.0, and remove '
            "server.schedule"
        )


def _steps_for_nothing(config: Config) -> Iterator[str]:
    """No client takes as many local steps as the objective takes to begin (`least_steps`)."""
    most, least = most_steps(config), config.objective.least_steps
    if most and most < least:
        key = "client.epochs" if config.example_privacy else "client.steps"
        yield (
            f"client.objective = {config.names['objective']!r} begins after {least} local steps "
            f"with these keys, and a client takes at most {most}, so that all would send plain "
            f"updates; raise {key} to {least} steps or more, lower the keys of the objective that "
            'say how many it takes, or use client.objective = "sgd"'
        )
