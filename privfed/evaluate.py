"""A trained model on data: the run's own test set, or another source; predictions to a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accounting.durable import write_atomically
from privfed.config import Config, overridden
from privfed.construct import network
from privfed.errors import Broken, Refused
from privfed.federation import Examples, Meaning
from privfed.network import Network
from privfed.population import population
from privfed.rundir import RunDirectory
from privfed.streams import Streams
from privfed.tensorfile import CPU

ON_TRAINED = "simulation: scored on examples of clients that train"
"""What a run, too, says of itself where data.holdout is "examples"."""


@dataclass(frozen=True)
class Evaluation:
    """Measures of the model of the run at `path`, after `round`, on `examples` examples."""

    path: Path
    round: int
    measures: dict[str, float]
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
        return "what you publish of these data is not covered by the run's ε"

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed evaluate --json` prints."""
        return {
            **self.measures,
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
    config = directory.read_config()
    if not directory.has_checkpoint():
        raise Refused(f"{path} has no checkpoint: its run had not begun")
    net = network(
        config.parts["model"],
        like,
        config.start,
        config.parts["loss"],
        Streams(config.run.seed).at("init"),
        CPU,
        directory.read_constants(),
    )
    checkpoint = directory.load_checkpoint(net, CPU)
    return net, checkpoint.state.params, checkpoint.round


def evaluate(
    path: Path, overrides: Sequence[str] = (), predictions: Path | None = None
) -> Evaluation:
    """Score the run at `path`; with `data.…` overrides, on all examples of that source instead.

    `predictions` is a CSV file to write, a row per example in the order of the data. Raises
    `Refused`, having written nothing.
    """
    config = RunDirectory.open(path).read_config()
    if predictions is not None and not predictions.parent.is_dir():
        raise Refused(f"--predictions {predictions}: the folder {predictions.parent} is missing")
    examples, data, inside = _examples(config, overrides, RunDirectory.open(path).round())
    if not len(examples):
        raise Refused(f"{data} hold no example to score")
    try:
        net, params, round = trained(path, examples)
    except Broken as error:
        if not overrides:
            raise
        raise Refused(f"these data do not fit the model of {path}: {error}") from error
    measures = net.evaluate(params, examples)
    if predictions is not None:
        write_atomically(predictions, _table(net, params, examples).encode())
    return Evaluation(path, round, measures, len(examples), data, not overrides, inside)


def _examples(config: Config, overrides: Sequence[str], round: int) -> tuple[Examples, str, bool]:
    """What to score on, what that is, and whether it is of clients that trained."""
    streams = Streams(config.run.seed)
    if not overrides:
        people = population(config, streams).at(round)
        return people.test, "the run's own test examples", people.shared
    for override in overrides:
        if not override.strip().startswith("data."):
            raise Refused(f"--set {override}: the model is trained; only keys of [data] may change")
    other = overridden(config, overrides)
    return (
        other.parts["source"].load(other.data.clients, streams),
        f"all examples of the source {other.names['source']!r}",
        False,
    )


def _table(net: Network, params: Tensor, examples: Examples) -> str:
    """CSV: the row's number from 1, the label, and the columns that the loss predicts."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    number = 0
    for outputs, y in net.scored(params, examples):
        columns = net.loss.predict(outputs, examples.meaning)
        if not number:
            writer.writerow(["row", "label", *columns])
        cells = [_words(y, examples.meaning)]
        cells += [_words(column, examples.meaning, False) for column in columns.values()]
        for row in zip(*cells, strict=True):
            number += 1
            writer.writerow([number, *row])
    return out.getvalue()


def _words(column: Tensor, meaning: Meaning, labels: bool = True) -> list[str]:
    """One cell per example: classes by name, the labels that are set, or numbers as they are."""
    rows = column.tolist()
    if column.dtype == torch.int64:
        return [_class(row, meaning.names) for row in rows]
    if labels and meaning.names:
        return [
            " ".join(name for name, value in zip(meaning.names, row, strict=True) if value)
            for row in rows
        ]
    if labels:
        return [f"{row[0] * meaning.scale + meaning.shift:.6g}" for row in rows]
    return [f"{row:.6g}" if isinstance(row, float) else _numbers(row) for row in rows]


def _class(row: int | list[Any], names: tuple[str, ...]) -> str:
    if isinstance(row, list):
        return "".join(_class(one, names) for one in row if one != -1)
    return names[row] if names else str(row)


def _numbers(row: list[Any]) -> str:
    flat = torch.tensor(row).flatten().tolist()
    return " ".join(f"{value:.3g}" for value in flat)
