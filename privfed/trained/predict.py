"""Predicts the label of each row of data with a trained model, and scores rows that have labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.data.federation import Examples
from privfed.data.source import LabelFree
from privfed.models.local_part import missing_part
from privfed.models.network import Network
from privfed.store.run_directory import RunDirectory
from privfed.trained.evaluate import (
    UNCOVERED,
    Predictions,
    predictions,
    refuse_unwritable,
    write_predictions,
)
from privfed.trained.stored_model import OtherData, data_paths, on_other_data, stored_model_for


@dataclass(frozen=True)
class Predicted:
    """Predictions of a trained model for each row of the data.

    Attributes:
      path: directory of the run.
      round: the last round whose update the model includes.
      table: the predictions, as columns by name.
      labelled: whether the rows have labels.
      measures: the model's scores by name; empty if the rows have no labels that can be scored.
      unscored: the reason why existing labels cannot be scored; "" otherwise.
      patterns: column names that the run's data declare with wildcards, such as "x*", and that
        match several columns each.
      out: the file to which `table` was written; None if it was not written.
      missing: a note that only clients have a part of the model; "" if they have none.
    """

    path: Path
    round: int
    table: Predictions
    labelled: bool
    measures: dict[str, float]
    unscored: str
    patterns: tuple[str, ...]
    out: Path | None
    missing: str

    @property
    def rows(self) -> int:
        """Number of predicted rows."""
        return len(self.table["row"])

    @property
    def notes(self) -> dict[str, str]:
        """Notes about the predictions, by topic."""
        notes = {"note": UNCOVERED}
        if self.patterns:
            named = ", ".join(map(repr, self.patterns))
            notes["order"] = f"columns that match {named} are read in the file's order"
        if self.missing:
            notes["lacks"] = self.missing
        return notes

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `privfed predict --json` prints."""
        return {
            **self.measures,
            "rows": self.rows,
            "labelled": self.labelled,
            "unscored": self.unscored or None,
            "columns": list(self.table),
            "predictions": str(self.out),
            "note": "; ".join(self.notes.values()),
            "round": self.round,
            "run": str(self.path),
        }


def predict(run: Path | RunDirectory, rows: OtherData, out: Path | None = None) -> Predicted:
    """Predicts all rows of other data, in their order, with the model of `run`.

    Args:
      run: directory of the run.
      rows: the data: assignments to keys of [data], as "data.path=…", or a function that returns
        their configuration.
      out: file for the table of predictions (.csv, .parquet or .npz); None to write none.

    Returns:
      The table, with the columns of `privfed.trained.evaluate.predictions`, and the model's scores
      if the rows are labelled.

    Raises:
      Refused: if there is no run with a checkpoint, `out` cannot be written, the source has only
        labelled rows, there are no rows, they do not fit the model, or the checkpoint is damaged;
        nothing is written then.
      Broken: if another file of the run is damaged.
    """
    directory = RunDirectory.open(run)
    stored = directory.config.read()
    config = on_other_data(stored, rows)
    if out is not None:
        refuse_unwritable(out, "--out", data_paths(stored) | data_paths(config))
    examples = _inputs(config)
    net, params, round = stored_model_for(directory, examples, other=True)
    table = predictions(net, params, examples, str(config.values()["data"].get("client", "")))
    measures, unscored = _measures(net, params, examples)
    if out is not None:
        write_predictions(out, table)
    return Predicted(
        directory.path,
        round,
        table,
        examples.labelled,
        measures,
        unscored,
        _patterns(examples),
        out,
        missing_part(net),
    )


def _inputs(config: Config) -> Examples:
    """Returns the rows to predict.

    Raises `Refused` if there are none, or the source has only labelled rows.
    """
    source = config.source
    if not isinstance(source, LabelFree):
        raise Refused(
            f"data.source is {config.names['source']!r}, but this source has only labelled rows; "
            "use `privfed evaluate RUN --data PATH --predictions FILE` to predict its examples"
        )
    examples = source.load_inputs()
    if not len(examples):
        raise Refused("the data hold no row to predict; name data with at least one row")
    return examples


def _measures(net: Network, params: Tensor, examples: Examples) -> tuple[dict[str, float], str]:
    """Returns the model's scores by name, and the reason why labels cannot be scored, or "".

    Without labels, the scores are empty and the reason is "".
    """
    if not examples.labelled:
        return {}, ""
    try:
        return net.evaluate(params, examples), ""
    except Refused as refused:
        return {}, str(refused)


def _patterns(examples: Examples) -> tuple[str, ...]:
    """Returns the names of numeric columns with a wildcard that match several columns."""
    numbers = examples.preprocessing.numbers if examples.preprocessing else ()
    return tuple(each.column for each in numbers if each.count > 1 and {*each.column} & {*"*?["})
