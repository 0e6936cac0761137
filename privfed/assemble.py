"""From a plan to the things that run: the population, the network, the algorithm, the executor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from privfed.data import populate
from privfed.errors import Refused
from privfed.federation import Federation
from privfed.local.executor import InProcess
from privfed.local.measure import fastest
from privfed.local.trainer import LocalTrainer
from privfed.models import Network, network
from privfed.plan import Plan
from privfed.round import Algorithm, TrainingState
from privfed.streams import Streams


@dataclass(frozen=True)
class Setup:
    """A run, ready to start. `plan` holds the measured trainer and chunk."""

    plan: Plan
    federation: Federation
    network: Network
    algorithm: Algorithm
    executor: InProcess
    streams: Streams

    def start(self) -> TrainingState:
        """The state before round 1."""
        params = self.network.start
        algorithm = self.algorithm
        return TrainingState(params, algorithm.server.init(params), algorithm.mechanism.init())


def assemble(plan: Plan, fresh: bool = True) -> Setup:
    """Load the data, build the model, and measure how to train it here. Raises `Refused`.

    A run that is not `fresh` has a checkpoint, and does not need the file that it started from.
    """
    config = plan.config
    torch.set_num_threads(config.run.threads)
    device = _device(config.run.device)
    streams = Streams(config.run.seed, simulated=config.run.randomness == "seeded")
    federation = populate(
        config.parts["source"],
        config.parts["partition"],
        config.data.clients,
        config.data.holdout_fraction,
        streams,
    ).to(device)
    examples = federation.examples
    net = network(
        config.parts["model"],
        tuple(examples.x.shape[1:]),
        examples.classes,
        config.own["model"].init if fresh else "",
        streams.at("init"),
        device,
    )
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
    way, chunk = fastest(
        trainer, config.parts["sampler"].size, config.run.trainer, config.run.chunk
    )
    algorithm = Algorithm(
        objective=config.parts["objective"],
        server=config.parts["optimizer"],
        rule=config.parts["rule"],
        mechanism=plan.mechanism,
        sampler=config.parts["sampler"],
        summation=config.parts["protocol"],
        clients=config.data.clients,
        byzantine=config.aggregation.byzantine,
    )
    executor = InProcess(replace(trainer, way=way), streams, chunk, plan.by_examples)
    measured = replace(plan, config=config.with_run(trainer=way, chunk=chunk))
    return Setup(measured, federation, net, algorithm, executor, streams)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f'run.device is {name!r}, but no GPU is at hand; use "cpu" or "auto"')
    return torch.device(name)
