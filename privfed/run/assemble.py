"""From a plan to the things that run: the population, the network, the algorithm, the executor."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privfed.config.config import Config
from privfed.data.federation import Examples, Federation
from privfed.data.population import population
from privfed.errors import Refused
from privfed.local.autotune import Speed, fastest
from privfed.local.byzantine import Attackers, targeted, unbounded
from privfed.local.executor import InProcess
from privfed.local.per_example import PerExample
from privfed.local.trainer import LocalTrainer
from privfed.models.build import network
from privfed.models.network import Network
from privfed.models.precision import mixed
from privfed.plan.plan import Plan
from privfed.plan.rule import rule_of
from privfed.privacy.mechanism import Mechanism
from privfed.round.round import Algorithm, TrainingState
from privfed.run.message_length import numbers_sent
from privfed.secure.aborts import refuse_population
from privfed.streams import Streams


@dataclass(frozen=True)
class Setup:
    """A run, ready to start. `plan` holds the trainer and the chunk that were measured.

    `speed` is that of training here, `evaluation` the seconds that scoring a model takes.
    """

    plan: Plan
    federation: Federation
    network: Network
    algorithm: Algorithm
    executor: InProcess
    streams: Streams
    speed: Speed
    evaluation: float
    attackers: Attackers | None = None
    targeted: Examples | None = None
    """Test examples as attackers feed them in, labelled as they want them read."""

    def start(self) -> TrainingState:
        """The state before round 1."""
        return self.algorithm.start(self.network.start)


def assemble(
    plan: Plan,
    constants: Mapping[str, Tensor] | None = None,
    people: Callable[[Config, Streams], Federation] = population,
) -> Setup:
    """Load the data, build the model, and measure how to train it here. Raises `Refused`.

    `people` builds the clients; `representative` ones are enough to say what a run would be.
    `constants` are those of a run that has a checkpoint: it does not need the file it started from.
    """
    config = plan.config
    torch.set_num_threads(config.run.threads)
    device = _device(config.run.device)
    streams = Streams(config.run.seed, simulated=config.run.randomness == "seeded")
    federation = people(config, streams).to(device)
    config.parts["sampler"].fits(federation.everybody, config.data.clients)
    if plan.mechanism.private:
        plan.cost.witness.refuse_population(federation.everybody, config.data.clients)
    if plan.event.slack:
        refuse_population(federation.everybody, config.data.clients)
    loss = config.parts["loss"]
    for part in (federation.examples, federation.test):
        loss.width(part)  # refuses labels that do not fit
    net = network(
        config.parts["model"],
        federation.examples,
        config.start,
        loss,
        streams.at("init"),
        device,
        constants,
    )
    _refuse_another_length(plan, net.shapes.length)
    if config.run.precision == "mixed":
        net = mixed(net, federation.examples)
    if config.parts["client_mechanism"].private:
        # Refuses a model whose examples it cannot tell apart.
        PerExample(net).verify(*federation.examples.made_up(3))
    began = time.perf_counter()
    net.evaluate(net.start, federation.test)  # refuses a test set that cannot be scored
    evaluation = (time.perf_counter() - began) * federation.tested
    client = config.client
    trainer = LocalTrainer(
        federation,
        net,
        config.parts["objective"],
        client.lr,
        client.epochs,
        client.batch_size,
        "stacked",
    )
    speed = fastest(trainer, config.parts["sampler"].size, config.run.trainer, config.run.chunk)
    algorithm = algorithm_of(plan)
    algorithm.encoded(net.shapes.length)  # refuses a codec that cannot hold the sums
    attackers = _attackers(config, federation, streams)
    executor = InProcess(
        replace(trainer, way=speed.way),
        streams,
        speed.chunk,
        plan.by_examples,
        config.parts["client_schedule"],
        client.stragglers,
        client.drop_stragglers,
        availability=config.parts["availability"],
        weights=tuple(config.aggregation.silo_weights),
        attackers=attackers,
        poisoned=attackers.poisoned(federation) if attackers and attackers.attack.poisons else None,
        unordered=speed.way == "loop" and _exact(plan.mechanism),
    )
    measured = replace(plan, config=config.with_run(trainer=speed.way, chunk=speed.chunk))
    return Setup(
        measured,
        federation,
        net,
        algorithm,
        executor,
        streams,
        speed,
        evaluation,
        attackers,
        targeted(attackers.attack, federation.test) if attackers else None,
    )


def algorithm_of(plan: Plan) -> Algorithm:
    """What happens each round, as planned."""
    config = plan.config
    return Algorithm(
        objective=config.parts["objective"],
        server=config.parts["optimizer"],
        rule=rule_of(config),
        mechanism=plan.mechanism,
        sampler=config.parts["sampler"],
        summation=plan.cost.summation,
        clients=config.data.clients,
        byzantine=config.aggregation.byzantine,
        schedule=config.parts["server_schedule"],
        dropout=config.dropout,
        aborts=plan.cost.aborts,
    )


def _attackers(config: Config, federation: Federation, streams: Streams) -> Attackers | None:
    """Who attacks; None where nobody does."""
    if not config.attacked:
        return None
    return Attackers(
        config.parts["attack"],
        config.attack.fraction,
        config.attack.selection == "round",
        unbounded(config),
        federation.people().identities,
        streams,
        federation.clients if federation.identities is None else None,
    )


def _exact(mechanism: Mechanism) -> bool:
    """Whether sums of its rows lie on a grid, so that they are the same in any order."""
    return mechanism.encoding(mechanism.init()).resolution < math.inf


def _refuse_another_length(plan: Plan, parameters: int) -> None:
    """Raises `Refused` where noise was planned for messages of another length than they have.

    Plans are made for a few made-up clients: a source whose examples grow with its clients would be
    charged for less than a row may hold once it is encoded.
    """
    planned, sent = plan.cost.length, numbers_sent(plan.config, parameters)
    if planned and planned != sent:
        raise Refused(
            f"the plan is for messages of {planned} numbers, but they have {sent}: the source's "
            "examples are of another width for other numbers of clients; make it the same for all"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        name = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f'run.device is {name!r}, but no GPU is at hand; use "cpu" or "auto"')
    return torch.device(name)
