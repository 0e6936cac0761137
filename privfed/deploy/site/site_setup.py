"""A run as one site sets it up: over its own clients, who are a part of all that are declared."""

from __future__ import annotations

from dataclasses import replace

from privfed.config.config import Config
from privfed.data.federation import Federation
from privfed.run.population import load_population
from privfed.run.prepare import prepare
from privfed.run.setup import Setup
from privfed.streams import Streams


def site_setup(config: Config) -> Setup:
    """The plan, model and people of a run at a site, whose table `config` names.

    What is planned follows from public constants, so that it is the same at every site. Raises
    `Refused`.
    """
    return prepare(config, load=_load_part)


def _load_part(config: Config, streams: Streams) -> Federation:
    """The site's own clients, some of all."""
    return replace(load_population(config, streams), stands_for=config.data.clients)
