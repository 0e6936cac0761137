"""The current or final model of a run, as stored in its directory."""

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
"""Overrides `data.key=value`, or a function that returns a configuration with other [data]."""


def on_other_data(config: Config, other: OtherData) -> Config:
    """`config` with other [data]. Raises `Refused` for a key of another section."""
    if callable(other):
        return other(config)
    for override in other:
        if not override.strip().startswith("data."):
            raise Refused(f"--set is {override}, but the model is trained; set only keys of [data]")
    return overridden(config, other)


def data_paths(config: Config) -> frozenset[str]:
    """All values of [data] that may be paths, which must not be overwritten."""
    return frozenset(v for v in config.values()["data"].values() if isinstance(v, str))


def stored_model(run: Path | RunDirectory, like: Examples) -> tuple[Network, Tensor, int]:
    """The network of a run, its parameters, and their round.

    `network.outputs(params, x)` applies the model.

    Args:
      run: directory of the run.
      like: examples; only their form is read.

    Returns:
      The network, its parameters [d], and their round.

    Raises:
      Refused: if there is no run, or it has not begun.
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
    """The `stored_model` for examples like `examples`.

    If these are `other` data than the run's and do not fit, it raises `Refused`; if they are the
    run's, the run is broken, and it raises `Broken`.
    """
    try:
        return stored_model(run, examples)
    except Broken as error:
        if not other:
            raise
        raise Refused(f"these data do not fit the model of {run.path}: {error}") from error
