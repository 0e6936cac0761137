"""A trained model, scored: on the run's own test set, or on another source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privfed.config.config import Config
from privfed.config.reading import overridden
from privfed.data.federation import Examples
from privfed.errors import Broken, Refused
from privfed.models.build import build_network
from privfed.models.network import Network
from privfed.plan.plan import ON_TRAINED
from privfed.run.constant_baseline import best_constant
from privfed.run.population import population
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory
from privfed.streams import Streams
from privfed.trained.predictions import predictions, writable, write

UNCOVERED = "what you publish of these data is not covered by the run's ε"


@dataclass(frozen=True)
class Evaluation:
    """Measures of the model of the run at `path`, after `round`, on `examples` examples.

    `constant` are those of the best answer that looks at nothing.
    """

    path: Path
    round: int
    measures: dict[str, float]
    constant: dict[str, float]
    examples: int
    data: str
    own_test_set: bool
    of_trained: bool = False
    """Whether clients whose examples these are trained the model."""

    @property
    def note(self) -> str | None:
        """What readers of the measures have to know."""
        if self.own_test_set:
            return ON_TRAINED if self.of_trained else None
        return UNCOVERED

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed evaluate --json` prints."""
        return {
            **self.measures,
            "constant": self.constant,
            "examples": self.examples,
            "data": self.data,
            "own_test_set": self.own_test_set,
            "note": self.note,
            "round": self.round,
            "run": str(self.path),
        }


def trained(path: Path, like: Examples) -> tuple[Network, Tensor, int]:
    """The network of the run at `path`, its parameters `[d]`, and the round they stand at.

    `like` says what an example looks like. `network.outputs(params, x)` applies the model. Raises
    `Refused` where there is no run, or nothing trained yet.
    """
    directory = RunDirectory.open(path)
    config = directory.config.read()
    if not directory.checkpoint.exists():
        raise Refused(f"{path} has no checkpoint: its run had not begun")
    net = build_network(
        config.model,
        like,
        config.start,
        config.loss,
        Streams(config.run.seed).at("init"),
        torch.device("cpu"),
        directory.constants.read(),
    )
    checkpoint = Checkpoint.load(directory, net)
    return net, checkpoint.state.params, checkpoint.round


def evaluate(path: Path, overrides: Sequence[str] = (), to: Path | None = None) -> Evaluation:
    """Score the run at `path`; with `data.…` overrides, on all examples of that source instead.

    `to` is a file to write predictions to, a row per example in the order of the data. Raises
    `Refused`, having written nothing.
    """
    stored = RunDirectory.open(path).config.read()
    config = on_other_data(stored, overrides) if overrides else stored
    if to is not None:
        writable(to, "--predictions", named_in(stored) | named_in(config))
    streams = Streams(config.run.seed)
    if overrides:
        examples, shared = config.source.load(config.data.clients, streams), False
        data = f"all examples of the source {config.names['source']!r}"
    else:
        people = population(config, streams).at(RunDirectory.open(path).checkpoint.round())
        examples, shared, data = people.test, people.shared, "the run's own test examples"
    if not len(examples):
        raise Refused(f"{data} hold no example to score")
    net, params, round = fitting(path, examples, bool(overrides))
    measures = net.evaluate(params, examples)
    if to is not None:
        client = str(config.values()["data"].get("client", ""))
        write(to, predictions(net, params, examples, client))
    constant = best_constant(net.loss, examples)
    return Evaluation(path, round, measures, constant, len(examples), data, not overrides, shared)


def fitting(path: Path, examples: Examples, other: bool) -> tuple[Network, Tensor, int]:
    """`trained`, for `examples`. Where these are `other` data, they are refused if they do not fit;
    else the run is broken.
    """
    try:
        return trained(path, examples)
    except Broken as error:
        if not other:
            raise
        raise Refused(f"these data do not fit the model of {path}: {error}") from error


def on_other_data(config: Config, overrides: Sequence[str]) -> Config:
    """`config` with other [data]. Raises `Refused` for any other key."""
    for override in overrides:
        if not override.strip().startswith("data."):
            raise Refused(f"--set {override}: the model is trained; only keys of [data] may change")
    return overridden(config, overrides)


def named_in(config: Config) -> frozenset[str]:
    """All that [data] names: what of it is a file is no place to write to."""
    return frozenset(v for v in config.values()["data"].values() if isinstance(v, str))
