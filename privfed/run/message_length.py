"""How long a client's message is, for plans that have to know before the run is assembled."""

from __future__ import annotations

import torch

from defenses.types import SumRule
from privfed.config.config import Config
from privfed.data.population import representative
from privfed.models.build import network
from privfed.plan.rule import rule_of
from privfed.streams import Streams


def message_length(config: Config) -> int:
    """The numbers of a message of `config`'s objective: reads its data and builds its model."""
    streams = Streams(config.run.seed, simulated=config.run.randomness == "seeded")
    federation, parts = representative(config, streams), config.parts
    net = network(
        parts["model"],
        federation.examples,
        config.start,
        parts["loss"],
        streams.at("init"),
        torch.device("cpu"),
    )
    return numbers_sent(config, net.shapes.length)


def numbers_sent(config: Config, parameters: int) -> int:
    """The numbers of a message about so many `parameters`."""
    rule = rule_of(config)
    more = rule.extra if isinstance(rule, SumRule) else 0
    return int(config.parts["objective"].layout(parameters).length) + more
