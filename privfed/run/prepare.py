"""Prepares a run; training, checks, resumes, rehearsals and attacks all begin here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

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
    Loader,
    load_population,
    load_representatives,
    protected,
    represented,
)
from privfed.run.rates import Trying, with_rates
from privfed.run.setup import Setup


def prepare(
    config: Config,
    before: Priors = NOTHING,
    constants: Mapping[str, Tensor] | None = None,
    load: Loader = load_population,
    begins: bool = True,
    trying: Trying = lambda *_: None,
) -> Setup:
    """Refuses or plans a run, loads its population, builds its model, and assembles the run.

    The plan is solved before anything is read, except under distributed noise, which depends on the
    message length, and so on the model. Values of keys that are "auto" are chosen last.

    Args:
      config: the configuration of the run.
      before: earlier runs, whose spending counts.
      constants: frozen constants of a run with a checkpoint, which no longer needs its start file.
      load: loads the population; `load_representatives` suffices for plans.
      begins: whether values of keys that are "auto" are chosen, as when a run begins.
      trying: called before each simulated run that chooses such a value.

    Returns:
      A run that is ready to start.

    Raises:
      Refused: if the run is not accepted.
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
    if config.open and begins:
        wanted = with_rates(solved, federation, network, _over, trying)
        if config.shared_noise:  # whose encoding, and so whose cost, depends on the clip
            wanted = replace(wanted, noise_multiplier=None, admitted=0, evaluation_admitted=0)
        solved = _solved(wanted, before, federation, network)
    return assemble(solved, federation, network, streams)


def _over(config: Config, population: Federation) -> Setup:
    """Returns the run of `config` over a population that is in memory, ready to start."""
    return prepare(config, load=lambda *_: population)


def plan_with_length(config: Config, before: Priors = NOTHING) -> Plan:
    """Returns the plan of a run without assembling it. Raises `Refused` if the run is not accepted.

    Distributed noise depends on the message length; only then is a model built.
    """
    if config.shared_noise is None:
        return plan(config, before)
    refuse(config)
    streams = streams_of(config)
    federation = _load(config, streams, load_representatives)
    network = _build(config, federation, streams, torch.device("cpu"), None)
    return _solved(config, before, federation, network)


def _solved(config: Config, before: Priors, federation: Federation, network: Network) -> Plan:
    """The plan of a run, with the message length of the population's examples and the model."""
    length, measures = message_length(config, network.shapes.length, network.shapes.by_name), 0
    if config.evaluation_rounds.every:
        measures = measure_row_of(config, Form.of(federation.examples)).length
    return solve_plan(config, before, length, measures)


def streams_of(config: Config) -> Streams:
    """Returns the random streams of a run."""
    return Streams(config.run.seed, simulated=config.run.randomness == "seeded")


def _load(config: Config, streams: Streams, load: Loader) -> Federation:
    """Returns clients and test set. Raises `Refused` if sampler or loss do not fit them."""
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
    averages = not protected(config)
    built = build_network(
        config.model, examples, config.start, config.loss, keys, device, constants, averages
    )
    if config.run.precision != "mixed":  # "fast" is measured after assembly
        return built
    return mixed(built, examples, config.client.batch_size)


def _refuse_other_examples(config: Config, federation: Federation, streams: Streams) -> None:
    """Raises `Refused` if examples have a shape or classes other than those that `check` plans for.

    `check` plans for a few synthetic clients. If examples grew with the number of clients, an
    encoded row could be longer than planned, and too little would be charged.
    """
    if federation.stands_for or not represented(config):
        return
    planned, loaded = load_representatives(config, streams).examples, federation.examples
    if (planned.x.shape[1:], planned.classes) != (loaded.x.shape[1:], loaded.classes):
        raise Refused(
            f"data.source is {config.names['source']!r}, but its examples have another form for "
            f"{config.data.clients} clients than for the fewer synthetic clients that planning "
            "uses; make the form independent of the number of clients"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        name = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f'run.device is {name!r}, but no GPU is available; use "cpu" or "auto"')
    return torch.device(name)
