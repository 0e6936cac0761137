"""From a configuration to its people: the clients, and the test set."""

from __future__ import annotations

from privfed.config import Config
from privfed.data import populate
from privfed.federation import Federation
from privfed.streams import Streams


def protected(config: Config) -> bool:
    """Whether a guarantee covers anybody: clients, or single examples of silos."""
    return bool(config.parts["mechanism"].private or config.parts["client_mechanism"].private)


def population(config: Config, streams: Streams) -> Federation:
    """The clients and the test set that `config` names. Raises `Refused`."""
    federation = populate(
        config.parts["source"],
        config.parts["partition"],
        config.data.clients,
        config.data.holdout_fraction,
        streams,
        config.data.holdout,
        protected=protected(config),
    )
    shifted: Federation = config.parts["shift"].apply(federation, streams)
    return shifted.rooted(config.aggregation.root)
