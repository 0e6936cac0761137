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
    """Returns `config` with other data: the assignments in `other`, such as "data.path=a.csv".

    If `other` is a function, returns its result for `config`. Raises `Refused` for an assignment to
    a key outside [data].
    """
    if callable(other):
        return other(config)
    for override in other:
        if not override.strip().startswith("data."):
            raise Refused(f"--set is {override}, but the model is trained; set only keys of [data]")
    return overridden(config, other)


def data_paths(config: Config) -> frozenset[str]:
    """Returns all values of [data] that are texts.

    Among them are the paths of data files, which must not be overwritten.
    """
    return frozenset(v for v in config.values()["data"].values() if isinstance(v, str))


def stored_model(run: Path | RunDirectory, like: Examples) -> tuple[Network, Tensor, int]:
    """Returns the model in a run's checkpoint.

    `network.outputs(params, x)` applies the returned model to features x.

    Args:
      run: directory of the run.
      like: examples; only their form is read.

    Returns:
      The network, its parameters `[d]` on the CPU, and the last round that they include.

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
    """Returns `stored_model(run, examples)`; if other data do not fit, the error is `Refused`.

    Args:
      run: the run.
      examples: the examples, of which only the form is read.
      other: whether these are other data than the run's own.

    Returns:
      The network, its parameters `[d]` on the CPU, and the last round that they include.

    Raises:
      Refused: if the run has no checkpoint; or, with `other`, if the data do not fit the model or
        the checkpoint is damaged.
      Broken: without `other`, if the data do not fit the model or the checkpoint is damaged.
    """
    try:
        return stored_model(run, examples)
    except Broken as error:
        if not other:
            raise
        raise Refused(f"these data do not fit the model of {run.path}: {error}") from error
