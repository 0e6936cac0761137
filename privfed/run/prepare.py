"""The one way into a run, for whoever trains, checks, resumes, rehearses or attacks it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from privfed.config.config import Config
from privfed.data.federation import Federation
from privfed.errors import Refused
from privfed.models.build import build_network
from privfed.models.network import Network
from privfed.models.precision import mixed
from privfed.plan.plan import Plan, plan, refuse, solve_plan
from privfed.plan.prior_spending import NOTHING, Priors
from privfed.plan.rule import message_length
from privfed.run.assemble import assemble
from privfed.run.population import load_population, load_representatives
from privfed.run.setup import Setup
from privfed.streams import Streams

Population = Callable[[Config, Streams], Federation]


def prepare(
    config: Config,
    before: Priors = NOTHING,
    constants: Mapping[str, Tensor] | None = None,
    people: Population = load_population,
) -> Setup:
    """Refuse, load, build, plan and assemble: each once. Raises `Refused`.

    What the runs `before` this one spent counts. `constants` are those of a run that has a
    checkpoint: it does not need the file that it started from. `people` loads
    the run's own; `load_representatives` is enough for those who ask what a run would be.
    """
    refuse(config)
    streams, device = streams_of(config), _device(config.run.device)
    torch.set_num_threads(config.run.threads)
    federation = _load(config, streams, people).to(device)
    net = _build(config, federation, streams, device, constants)
    solved = solve_plan(config, before, message_length(config, net.shapes.length))
    return assemble(solved, federation, net, streams)


def planned(config: Config, before: Priors = NOTHING) -> Plan:
    """The plan of a run that is not assembled. Raises `Refused`.

    Only noise that clients share depends on a message's length, for which a model is built.
    """
    if config.shared_noise is None:
        return plan(config, before)
    refuse(config)
    streams = streams_of(config)
    federation = _load(config, streams, load_representatives)
    net = _build(config, federation, streams, torch.device("cpu"), None)
    return solve_plan(config, before, message_length(config, net.shapes.length))


def streams_of(config: Config) -> Streams:
    """Where the randomness of a run comes from."""
    return Streams(config.run.seed, simulated=config.run.randomness == "seeded")


def _load(config: Config, streams: Streams, people: Population) -> Federation:
    """The clients and the test set. Raises `Refused` where sampler or loss are for others."""
    federation = people(config, streams)
    config.sampler.fits(federation.population_size, config.data.clients)
    for examples in (federation.examples, federation.test):
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
    return mixed(built, examples) if config.run.precision == "mixed" else built


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        name = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f'run.device is {name!r}, but no GPU is at hand; use "cpu" or "auto"')
    return torch.device(name)
