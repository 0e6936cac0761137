"""What is said of an objective that may become another one than it is called."""

from __future__ import annotations

from privfed.config.config import Config
from privfed.plan.local_work import adds_updates


def objective_rows(config: Config) -> dict[str, str]:
    """A server that steps otherwise than the paper's, and steps that may be too few."""
    pairs = {}
    name, least = config.names["objective"], config.objective.least_steps
    if config.objective.server_step == "plain" and not adds_updates(config):
        pairs["server"] = (
            f"another algorithm than the published {name}, whose next model is the model plus the "
            'update (server.optimizer = "fedavg" at rate 1): it rests at the same points, and may '
            "come there faster, slower or not at all"
        )
    if least and not config.example_privacy:  # whose steps are known, and enough
        pairs["samples"] = (
            f"a client that takes fewer than {least} local steps in a round sends a plain update, "
            f"as sgd does; batches of {config.client.batch_size}, {config.client.epochs} epochs"
        )
    return pairs
