"""How long a client's message is, for plans that have to know before the run is assembled."""

from __future__ import annotations

import torch

from privfed.config import Config
from privfed.construct import network
from privfed.data import populate
from privfed.streams import Streams


def message_length(config: Config) -> int:
    """The numbers of a message of `config`'s objective: reads its data and builds its model."""
    run, data = config.run, config.data
    streams = Streams(run.seed, simulated=run.randomness == "seeded")
    parts = config.parts
    federation = populate(
        parts["source"],
        parts["partition"],
        data.clients,
        data.holdout_fraction,
        streams,
        data.holdout,
    )
    net = network(
        parts["model"],
        federation.examples,
        config.start,
        parts["loss"],
        streams.at("init"),
        torch.device("cpu"),
    )
    return int(parts["objective"].layout(net.shapes.length).length)
