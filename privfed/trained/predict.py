"""Predictions of a trained model on unlabelled rows; and its measures, if rows have labels."""

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
    """Predictions of the model of the run at `path`, after `round`, for each row of the data.

    `measures` are empty for unlabelled rows, or if `unscored` states why the labels cannot be
    scored. `out` is the file of `table`, if written. `patterns` each declare several columns at
    once. `missing` describes the local part of the model.
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
        """Notes for readers, by topic."""
        notes = {"note": UNCOVERED}
        if self.patterns:
            named = ", ".join(map(repr, self.patterns))
            notes["order"] = f"columns that {named} means: in the file's order"
        if self.missing:
            notes["lacks"] = self.missing
        return notes

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed predict --json` prints."""
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
    """Predicts all `rows`, in their order, by the model of `run`.

    The table has the row's number, its client if the file has it, its label if there are labels,
    the prediction, and a probability for each class.

    Args:
      run: directory of the run.
      rows: the rows, as `data.path=…`.
      out: file of the table (.csv, .parquet or .npz), if it is to be written.

    Returns:
      The table, and measures if rows are labelled.

    Raises:
      Refused: with nothing written, if the rows do not fit the model.
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
    """The rows to predict. Raises `Refused` for none, and for a source of labelled rows only."""
    source = config.source
    if not isinstance(source, LabelFree):
        raise Refused(
            f"data.source is {config.names['source']!r}, which has no rows without labels; use "
            "`privfed evaluate RUN --data PATH --predictions FILE` to predict its examples"
        )
    examples = source.load_inputs()
    if not len(examples):
        raise Refused("the data hold no row to predict; name data with at least one row")
    return examples


def _measures(net: Network, params: Tensor, examples: Examples) -> tuple[dict[str, float], str]:
    """Measures, or the reason for their absence: labels of rows to predict are optional."""
    if not examples.labelled:
        return {}, ""
    try:
        return net.evaluate(params, examples), ""
    except Refused as refused:
        return {}, str(refused)


def _patterns(examples: Examples) -> tuple[str, ...]:
    """The patterns that declare several columns at once, whose order is that of the file."""
    numbers = examples.preprocessing.numbers if examples.preprocessing else ()
    return tuple(each.column for each in numbers if each.count > 1 and {*each.column} & {*"*?["})
