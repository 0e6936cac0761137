"""Builds the models on public examples: the server's, and clients' own."""

from __future__ import annotations

from dataclasses import replace

from privfed.client.own_models import OwnModel, Predictions
from privfed.client.student import NetworkStudent
from privfed.client.trainer import LocalTrainer, Way
from privfed.config.config import Config
from privfed.core.errors import Refused, public_text
from privfed.core.parts import find
from privfed.core.registry import CLIENT_MODELS
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.models.build import build_network
from privfed.models.network import Network
from privfed.models.start import Start


def student_of(config: Config, federation: Federation, network: Network) -> NetworkStudent | None:
    """Returns the server's model on public examples; None if messages are not about such.

    Raises `Refused` if the model's outputs are not those that the compression declares.
    """
    public, compression = federation.root, config.compression
    if not compression.public or public is None:
        return None
    classes = compression.length(network.shapes) // compression.public
    return NetworkStudent.of(network, public, compression.public, classes)


def client_trainers(
    config: Config, trainer: LocalTrainer, student: NetworkStudent | None, streams: Streams
) -> tuple[LocalTrainer, ...]:
    """Returns a trainer for each architecture of clients' own models; none without such models.

    Args:
      config: the configuration of the run.
      trainer: the trainer of the server's model.
      student: the server's model on public examples; None if the run has none.
      streams: random streams of the run.

    Raises:
      Refused: if an architecture cannot be built for the examples.
    """
    compression = config.compression
    if student is None or not compression.trains_own_models:
        return ()
    if not isinstance(compression, Predictions):
        raise TypeError("a compression for clients' own models has to compute predictions")
    networks = _client_networks(config, trainer.federation, trainer.network, streams)
    width = max(network.shapes.length for network in networks)
    trainers = []
    for network in networks:
        pupil = student.with_architecture(network)
        pupil.refuse_other_outputs()
        objective = OwnModel(
            inner=config.objective,
            compression=compression,
            student=pupil,
            start=network.initial_params,
            width=width if compression.keep_models else 0,
        )
        way: Way = "loop" if network.unstackable else trainer.way
        trainers.append(replace(trainer, network=network, objective=objective, way=way))
    return tuple(trainers)


def _client_networks(
    config: Config, federation: Federation, network: Network, streams: Streams
) -> tuple[Network, ...]:
    """Returns the architectures of clients' own models. Raises `Refused` for invalid ones."""
    if not config.compression.architectures:
        return (network,)
    device = network.initial_params.device

    def built(name: str) -> Network:
        recipe = find("model", name, CLIENT_MODELS)()
        keys = streams.at("init").derived(name.encode())
        try:
            return build_network(recipe, federation.examples, Start(), config.loss, keys, device)
        except Refused as error:
            reason = public_text(error).replace("model.name", CLIENT_MODELS)
            raise Refused(reason, key=CLIENT_MODELS) from error

    return tuple(map(built, config.compression.architectures))
