"""Reads the last stored model of a run from its directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from privfed.config.config import Config
from privfed.config.reading import overridden
from privfed.core.errors import Broken, Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.models.build import build_network
from privfed.models.network import Network
from privfed.run.population import protected
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory

OtherData = Sequence[str] | Callable[[Config], Config]
"""Assignments `data.key=value`, or a function that returns a configuration of other data."""


def on_other_data(config: Config, other: OtherData) -> Config:
    """Returns `config` with `other` keys of [data]. Raises `Refused` for any other key."""
    if callable(other):
        return other(config)
    for override in other:
        if not override.strip().startswith("data."):
            raise Refused(f"--set is {override}, but the model is trained; set only keys of [data]")
    return overridden(config, other)


def data_paths(config: Config) -> frozenset[str]:
    """Returns all texts in [data], among them the paths of files that must not be overwritten."""
    return frozenset(v for v in config.values()["data"].values() if isinstance(v, str))


def stored_model(run: Path | RunDirectory, like: Examples) -> tuple[Network, Tensor, int]:
    """Returns the network of a run, its parameters, and their round.

    `network.outputs(params, x)` applies the model.

    Args:
      run: directory of the run.
      like: examples; only their form is read.

    Returns:
      The network, its parameters `[d]` on the CPU, and their round.

    Raises:
      Refused: if there is no run, or the run has no checkpoint.
      Broken: if the checkpoint is damaged, or does not fit the form of `like` or the model's code.
    """
    directory = RunDirectory.open(run)
    config = directory.config.read()
    if not directory.checkpoint.exists():
        raise Refused(
            f"{directory.path} has no checkpoint, because its run has not begun; train the run "
            "first"
        )
    net = build_network(
        config.model,
        like,
        config.start,
        config.loss,
        Streams(config.run.seed).at("init"),
        torch.device("cpu"),
        directory.constants.read(),
        averages=not protected(config),
    )
    checkpoint = Checkpoint.load(directory, net)
    return net, checkpoint.state.params, checkpoint.round


def stored_model_for(
    run: RunDirectory, examples: Examples, other: bool
) -> tuple[Network, Tensor, int]:
    """Returns the `stored_model` of `run` for examples of the form of `examples`.

    Args:
      run: the run.
      examples: the examples, of which only the form is read.
      other: whether these are other data than the run's own.

    Returns:
      The network, its parameters `[d]` on the CPU, and their round.

    Raises:
      Refused: if the run has no checkpoint, or `other` data do not fit the model.
      Broken: if the run's own data do not fit the model, or the checkpoint is damaged.
    """
    try:
        return stored_model(run, examples)
    except Broken as error:
        if not other:
            raise
        raise Refused(f"these data do not fit the model of {run.path}: {error}") from error
