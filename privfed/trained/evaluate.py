"""Scores a trained model on the run's own test set or on another source; writes predictions."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accounting.durable import write_atomically
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Meaning
from privfed.data.source import UserObjectSource
from privfed.models.local_part import missing_part
from privfed.models.network import Network
from privfed.plan.plan import ON_TRAINED
from privfed.run.evaluation.charged_measures import over_groups
from privfed.run.evaluation.divergence import best_constant
from privfed.run.population import load_population
from privfed.store.run_directory import RunDirectory
from privfed.trained.stored_model import OtherData, data_paths, on_other_data, stored_model_for

Predictions = Mapping[str, np.ndarray]
"""Columns `[N]` of numbers or text, by name."""


def predictions(net: Network, params: Tensor, examples: Examples, client: str = "") -> Predictions:
    """Returns a table of predictions, with one line per example.

    Args:
      net: the model.
      params: the model's parameters, shape `[d]`.
      examples: the N examples.
      client: name of the column with each example's client; "" for no such column.

    Returns:
      Columns `[N]` by name: "row", the number of the example (from 1); the client if `client` is
      given and the owners are known; "label" if examples are labelled; and the columns that
      `Loss.predict` returns. If `client` is "label", "file" or the name of another column, the
      clients' column is called "client".
    """
    meaning = examples.meaning
    pieces = [net.loss.predict(outputs, meaning) for outputs, _ in net.scored(params, examples)]
    predicted = {
        name: _cells(torch.cat([piece[name] for piece in pieces]), meaning) for name in pieces[0]
    }
    table: dict[str, np.ndarray] = {"row": np.arange(1, len(examples) + 1)}
    if client and examples.owners is not None:
        taken = {*table, *predicted, "label", "file"}  # the last is NumPy's own
        name = "client" if client in taken else client
        table[name] = np.array(examples.clients)[examples.owners]
    if examples.labelled:
        table["label"] = _cells(_labels(examples.y, meaning), meaning)
    return {**table, **predicted}


def refuse_unwritable(path: Path, option: str, data: Collection[str]) -> None:
    """Raises `Refused` if predictions cannot be written to `path`, or must not be.

    The suffix of `path` has to be .csv, .parquet or .npz, and its folder has to exist. A path among
    the files `data`, which must not be overwritten, is refused, too. `option` is the command-line
    option with this path, for messages.
    """
    if path.suffix.lower() not in _WRITERS:
        raise Refused(f"{option} is {path}; expected a name that ends in {', '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise Refused(
            f"{option} is {path}, but the folder {path.parent} is missing; create the folder"
        )
    if path.resolve() in {Path(each).resolve() for each in data if each}:
        raise Refused(
            f"{option} is {path}, but that is a file of the data; nothing was changed; name "
            "another file"
        )


def write_predictions(path: Path, table: Predictions) -> None:
    """Writes `table` to `path` atomically, as CSV, Parquet or NumPy archive by its suffix."""
    write_atomically(path, _WRITERS[path.suffix.lower()](table))


def as_csv(table: Predictions) -> bytes:
    """Returns `table` as CSV (UTF-8), with numbers at full precision."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(column.astype(str).tolist() for column in table.values()), strict=True))
    return buffer.getvalue().encode()


def _as_parquet(table: Predictions) -> bytes:
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(table)), buffer)
    return buffer.getvalue()


def _as_npz(table: Predictions) -> bytes:
    buffer = io.BytesIO()
    arrays: dict[str, Any] = dict(table)
    np.savez(buffer, **arrays)
    return buffer.getvalue()


_WRITERS: dict[str, Callable[[Predictions], bytes]] = {
    ".csv": as_csv,
    ".parquet": _as_parquet,
    ".npz": _as_npz,
}


def _labels(y: Tensor, meaning: Meaning) -> Tensor:
    """Converts labels y to the form in which `Loss.predict` returns predictions.

    Classes are int64 `[N, *]`, and sets of labels bool `[N, labels]`. Numbers `[N]` are in the
    units of the data, rounded to 6 significant digits.
    """
    if y.dtype == torch.int64:
        return y
    if y.shape[1] > 1:
        return y.bool()
    numbers = (y[:, 0].double() * meaning.scale + meaning.shift).tolist()
    return torch.tensor([float(f"{number:.6g}") for number in numbers])  # y is single precision


def _cells(column: Tensor, meaning: Meaning) -> np.ndarray:
    """Returns a column `[N]` of the table of predictions, from one value or row per example.

    Classes are replaced by their names if they have names; numbers are unchanged. Several labels or
    numbers of one example are joined to one text, in which numbers have 3 significant digits.
    """
    values: np.ndarray = column.cpu().numpy()
    if column.dtype == torch.bool:
        return np.array([_set(row, meaning.names) for row in values.tolist()], dtype=str)
    if column.dim() > 1:
        as_text = _sequence if column.dtype == torch.int64 else _numbers
        return np.array([as_text(row, meaning.names) for row in values.tolist()], dtype=str)
    if column.dtype == torch.int64 and meaning.names:
        values = np.array(meaning.names)[values]
    return values


def _set(row: Sequence[bool], names: Sequence[str]) -> str:
    """Returns the names of the labels that `row` sets, joined by spaces; indices without names."""
    names = names or [str(n) for n in range(len(row))]
    return " ".join(name for name, held in zip(names, row, strict=True) if held)


def _sequence(row: Sequence[int], names: Sequence[str]) -> str:
    """Returns the labels of a sequence in order as one text, without unlabelled positions (-1)."""
    between = "" if names else " "
    return between.join(names[label] if names else str(label) for label in row if label != -1)


def _numbers(row: Sequence[Any], names: Sequence[str]) -> str:
    return " ".join(f"{value:.3g}" for value in np.array(row).ravel())


UNCOVERED = "published results on these data are not covered by the run's ε"


@dataclass(frozen=True)
class Evaluation:
    """The scores of a run's last stored model on one set of examples.

    Attributes:
      path: directory of the run.
      round: the last round whose update the model includes.
      measures: the model's scores by name of the measure.
      constant: the scores of the baseline (best constant prediction), by name.
      examples: number of scored examples.
      data: description of the examples.
      own_test_set: whether the examples are the run's own test set.
    """

    path: Path
    round: int
    measures: dict[str, float]
    constant: dict[str, float]
    examples: int
    data: str
    own_test_set: bool
    of_trained: bool = False
    """Whether the model was trained by the clients that own these examples."""
    missing: str = ""
    """A note on the part of the model that only clients have, so that these scores are without it;
    "" if there is no such part."""

    @property
    def note(self) -> str | None:
        """The limits of the scores, for a reader; None if there is none to state."""
        trained = ON_TRAINED if self.of_trained else ""
        notes = (trained if self.own_test_set else UNCOVERED, self.missing)
        return "; ".join(filter(None, notes)) or None

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed evaluate --json` prints."""
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


def evaluate(
    run: Path | RunDirectory, other: OtherData = (), to: Path | None = None, group: str = ""
) -> Evaluation:
    """Scores the model of a run on its own test set, or on other data.

    Args:
      run: directory of the run.
      other: assignments to keys of [data], as "data.path=…", or a function that returns the
        configuration of other data; all examples of these data are scored instead of the test set.
      to: file for predictions (.csv, .parquet or .npz), with a line per example in the order of the
        data; None for no file.
      group: column of categories, or "label", whose groups are also scored; if "", the run's
        `evaluation.group`.

    Returns:
      The scores of the model and of the baseline (best constant prediction).

    Raises:
      Refused: if there is no run with a checkpoint, `to` cannot be written, the data have no
        examples or do not fit the model, or `group` defines no groups; nothing is written then.
      Broken: if the run's own examples do not fit its model, or a file of the run is damaged.
    """
    directory = RunDirectory.open(run)
    stored = directory.config.read()
    config = on_other_data(stored, other) if other else stored
    if to is not None:
        refuse_unwritable(to, "--predictions", data_paths(stored) | data_paths(config))
    streams = Streams(config.run.seed)
    if other:
        examples, of_trained = config.source.load(config.data.clients, streams), False
        data = f"all examples of the source {config.names['source']!r}"
    else:
        population = load_population(config, streams)
        if isinstance(config.source, UserObjectSource):
            directory.population.refuse_others((population.examples, population.test))
        population = population.at(directory.checkpoint.round())
        examples, of_trained = population.test, population.shared
        data = "the run's own test examples"
    if not len(examples):
        instead = (
            "; let clients score it: `privfed evaluate RUN --federated --epsilon E`"
            if config.nothing_public
            else ""
        )
        raise Refused(f"{data} hold no example to score{instead or '; name other data'}")
    net, params, round = stored_model_for(directory, examples, bool(other))
    measures = net.evaluate(params, examples)
    measures |= over_groups(net, params, examples, group or config.evaluation.group)
    if to is not None:
        client = str(config.values()["data"].get("client", ""))
        write_predictions(to, predictions(net, params, examples, client))
    constant = best_constant(net.loss, examples)
    return Evaluation(
        directory.path,
        round,
        measures,
        constant,
        len(examples),
        data,
        not other,
        of_trained,
        missing_part(net),
    )
