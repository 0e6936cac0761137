"""The one way into a run, for whoever trains, checks, resumes, rehearses or attacks it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.models.build import build_network
from privfed.models.form import Form
from privfed.models.network import Network
from privfed.models.precision import mixed
from privfed.plan.evaluation_cost import measure_row_of
from privfed.plan.plan import Plan, plan, refuse, solve_plan
from privfed.plan.prior_spending import NOTHING, Priors
from privfed.plan.rule import message_length
from privfed.run.assemble import assemble
from privfed.run.population import (
    load_population,
    load_representatives,
    represented,
)
from privfed.run.setup import Setup

Loader = Callable[[Config, Streams], Federation]


def prepare(
    config: Config,
    before: Priors = NOTHING,
    constants: Mapping[str, Tensor] | None = None,
    load: Loader = load_population,
) -> Setup:
    """Refuse, plan, load, build and assemble: each once. Raises `Refused`.

    What the runs `before` this one spent counts. `constants` are those of a run that has a
    checkpoint: it does not need the file that it started from. `load` loads the run's own people;
    `load_representatives` is enough for those who ask what a run would be.

    The plan comes before anything is read, but for noise that clients share: it depends on the
    length of a message, which the model tells.
    """
    refuse(config)
    solved = None if config.shared_noise else solve_plan(config, before)
    streams, device = streams_of(config), _device(config.run.device)
    torch.set_num_threads(config.run.threads)
    federation = _load(config, streams, load).to(device)
    network = _build(config, federation, streams, device, constants)
    if solved is None:
        _refuse_other_examples(config, federation, streams)
        solved = _solved(config, before, federation, network)
    return assemble(solved, federation, network, streams)


def plan_with_length(config: Config, before: Priors = NOTHING) -> Plan:
    """The plan of a run that is not assembled. Raises `Refused`.

    Only noise that clients share depends on a message's length, for which a model is built.
    """
    if config.shared_noise is None:
        return plan(config, before)
    refuse(config)
    streams = streams_of(config)
    federation = _load(config, streams, load_representatives)
    network = _build(config, federation, streams, torch.device("cpu"), None)
    return _solved(config, before, federation, network)


def _solved(config: Config, before: Priors, federation: Federation, network: Network) -> Plan:
    """The plan of a run whose messages are as long as these examples and this model make them."""
    length, measures = message_length(config, network.shapes.length, network.shapes.by_name), 0
    if config.evaluation_rounds.every:
        measures = measure_row_of(config, Form.of(federation.examples)).length
    return solve_plan(config, before, length, measures)


def streams_of(config: Config) -> Streams:
    """Where the randomness of a run comes from."""
    return Streams(config.run.seed, simulated=config.run.randomness == "seeded")


def _load(config: Config, streams: Streams, load: Loader) -> Federation:
    """The clients and the test set. Raises `Refused` where sampler or loss are for others."""
    federation = load(config, streams)
    config.sampler.fits(federation.population_size, config.data.clients)
    for examples in (federation.examples, federation.test):
        if len(examples):
            config.loss.width(examples)  # refuses labels that do not fit
    return federation


def _build(
    config: Config,
    federation: Federation,
    streams: Streams,
    device: torch.device,
    constants: Mapping[str, Tensor] | None,
) -> Network:
    keys, examples = streams.at("init"), federation.examples
    built = build_network(
        config.model, examples, config.start, config.loss, keys, device, constants
    )
    if config.run.precision != "mixed":  # "fast" is measured once all is there
        return built
    return mixed(built, examples, config.client.batch_size)


def _refuse_other_examples(config: Config, federation: Federation, streams: Streams) -> None:
    """Raises `Refused` where examples are of another form than `check` planned for.

    It plans for a few made-up clients: a source whose examples grow with its clients would be
    charged for less than a row may hold once it is encoded.
    """
    if federation.stands_for or not represented(config):
        return
    planned, loaded = load_representatives(config, streams).examples, federation.examples
    if (planned.x.shape[1:], planned.classes) != (loaded.x.shape[1:], loaded.classes):
        raise Refused(
            f"examples of {config.names['source']!r} are of another form for "
            f"{config.data.clients} clients than where fewer clients are made up to plan for: make "
            "it the same for any number of clients"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        name = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f'run.device is {name!r}, but no GPU is at hand; use "cpu" or "auto"')
    return torch.device(name)
