"""Builds the models on public examples: the server's, and clients' own."""

from __future__ import annotations

from privfed.client.own_models import own_trainers
from privfed.client.student import NetworkStudent
from privfed.client.trainer import LocalTrainer
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
    if student is None or not config.compression.trains_own_models:
        return ()
    networks = _client_networks(config, trainer.federation, trainer.network, streams)
    for network in networks:
        student.with_architecture(network).refuse_other_outputs()
    return own_trainers(trainer, student, networks)


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
