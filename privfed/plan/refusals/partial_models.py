"""What is refused where clients train another model than the one that the server keeps."""

from __future__ import annotations

from collections.abc import Iterator

from privfed.config.config import Config
from privfed.local.personal import personalises


def partial_model_refusals(config: Config) -> Iterator[str]:
    """Every reason why no part of the model can stay with clients, or be trained first."""
    if config.start.local:
        yield from _objectives_of_whole_models(config)
    yield from _attackers_on_their_own_way(config)
    yield from _epochs_of_what_stays(config)


def _objectives_of_whole_models(config: Config) -> Iterator[str]:
    """The broadcast model is whole with a client's own part only, and so is one beside it."""
    objective = config.objective
    where = (
        "model.local has a part of the model stay with each client, and client.objective = "
        f"{config.names['objective']!r}"
    )
    if personalises(objective):
        yield f"{where} gives each a model of its own: use one of the two"
    elif objective.anchored or objective.measures or objective.exchanges > 1:
        yield (
            f"{where} reads examples at models that are sent, which lack it; use one that reads "
            'examples in its local steps alone, as "sgd", "fedprox" or "scaffold"'
        )


def _attackers_on_their_own_way(config: Config) -> Iterator[str]:
    """Attackers who steer (`attack.steers`) train the one model that is sent, and no other."""
    if not (config.attacked and config.attack.steers):
        return
    attack = f"attack.name is {config.names['attack']!r}, which steers the model that is sent"
    if config.start.local:
        yield f"{attack}, and model.local adds parameters that are not; use another attack"
    elif dict(config.objective.layout(1).parts).get("delta", 1) > 1:
        name = config.names["objective"]
        yield f"{attack}, and client.objective = {name!r} sends several; use another attack"


def _epochs_of_what_stays(config: Config) -> Iterator[str]:
    """Epochs of what stays are some of `client.epochs`, and go before plain steps."""
    count, client = config.client.local_epochs, config.client
    if not count:
        return
    if not config.start.local:
        yield (
            f"client.local_epochs is {count}, and no part of the model stays with clients; set "
            "model.local, or remove the key"
        )
    elif count >= client.epochs or client.steps:
        yield (
            f"client.local_epochs is {count}, client.epochs {client.epochs} and client.steps "
            f"{client.steps}: expected some epochs for what is shared behind those for what stays; "
            "raise client.epochs, and set client.steps = 0"
        )
    elif not config.objective.plain:
        yield (
            f"client.local_epochs is {count}, and client.objective = "
            f'{config.names["objective"]!r} corrects steps, of what stays too; use "sgd", or '
            "client.local_epochs = 0"
        )
