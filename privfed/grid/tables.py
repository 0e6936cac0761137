"""Writes a grid's tables: of its runs, of their evaluated rounds, and of means over seeds.

All figures are drawn from these tables alone, without the run directories. If a grid names no
metric, figures and tuning use the first metric of the loss. A loss declares the name of its first
metric and whether lower values are better. Of all other metrics, higher values are better, except
those whose name ends in "loss".
"""

from __future__ import annotations

import contextlib
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting import regular
from accounting.documents import from_json
from accounting.durable import make_folder, write_atomically
from privfed.core.errors import Refused
from privfed.grid.cells import Cell, Result, folder_of
from privfed.grid.joint_guarantee import Joint
from privfed.grid.pictures.figures import Figure, holds
from privfed.grid.results import (
    DONE,
    JOINT,
    TERMS,
    Files,
    Row,
    measures_of,
    number_or_none,
    ordered_columns,
    round_row,
)
from privfed.grid.results import (
    row as result_row,
)
from privfed.models.loss import Loss
from privfed.round.tally import TOTALS

if TYPE_CHECKING:
    import pyarrow


Losses = Sequence[tuple[Mapping[str, Any], Loss]]
"""Pairs of a cell's values, as they are written in tables, and the cell's loss."""


def less_is_better(loss: Loss, measure: str) -> bool:
    """Whether lower values of the metric `measure` are better.

    The loss declares this for its first metric, and for columns derived from it (their names begin
    with its name). Of all other metrics, lower is better if the name ends with "loss".
    """
    return loss.lower_is_better if measure.startswith(loss.measure) else measure.endswith("loss")


def figure_with_measure(figure: Figure, losses: Losses) -> Figure:
    """Returns `figure`, completed by its metric, and whether lower values are better.

    Args:
      figure: the figure.
      losses: the values and the loss of each cell.

    Raises:
      Refused: if the figure names no metric, and the losses of its cells differ in their first
        metric.
    """
    losses_shown = [loss for values, loss in losses if holds(values, figure.where)]
    if not losses_shown:
        return figure  # every cell is refused, with a reason
    measure = figure.measure or _only(
        losses_shown, f"figure {figure.name!r}: measure", "show some by where"
    )
    lower = _direction(figure.lower_is_better, losses_shown, measure)
    return figure.model_copy(update={"measure": measure, "lower_is_better": lower})


def tuning_measure(by: str, lower_is_better: bool | None, loss: Loss | None) -> tuple[str, bool]:
    """Returns the metric by which tuning chooses, and whether lower values of it are better.

    Args:
      by: the configured metric; "": the first metric of the loss.
      lower_is_better: the configured direction; None: as the loss defines it; without one, False.
      loss: the loss of the cells to choose from; None if all are refused.
    """
    losses = [] if loss is None else [loss]
    measure = by or next((loss.measure for loss in losses), "")
    return measure, _direction(lower_is_better, losses, measure)


def _direction(stated: bool | None, losses: Sequence[Loss], measure: str) -> bool:
    if stated is not None:
        return stated
    return any(less_is_better(loss, measure) for loss in losses)


def refuse_several_measures(losses: Sequence[Loss]) -> None:
    """Raises `Refused` if the losses of the options for one choice differ in their first metric."""
    _only(losses, "tune.by", "vary the loss in [grid]")


def _only(losses: Sequence[Loss], key: str, instead: str) -> str:
    """Returns the first metric of all `losses`. Raises `Refused` if they differ in it.

    The message names the missing `key`, and the alternative `instead`.
    """
    measures = list(dict.fromkeys(loss.measure for loss in losses))
    if len(measures) > 1:
        raise Refused(
            f"{key} is missing, but the losses of these cells differ in their first measure: "
            f"{', '.join(measures)}; name a measure that all cells have, or {instead}"
        )
    return measures[0]


def summary(keys: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Returns a row per combination of values of `keys`, with statistics over completed runs."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    measures = [*measures_of(keys, rows), "epsilon"]
    return [
        dict(zip(keys, values, strict=True)) | _over_seeds(seeds, measures)
        for values, seeds in cells.items()
    ]


def _over_seeds(seeds: Sequence[Row], measures: Sequence[str]) -> Row:
    """Returns the summary's row for one combination of values, from its rows for all seeds."""
    done = [row for row in seeds if row["status"] == DONE]
    line: Row = {"seeds": len(done), "not_done": len(seeds) - len(done)}
    for name in TERMS:
        line[name] = next((row[name] for row in done if row.get(name) is not None), None)
    for name in measures:
        numbers = [float(row[name]) for row in done if row.get(name) is not None]
        line |= spread(numbers).to_row(name)
    return line | _joint_of(seeds)


def _joint_of(seeds: Sequence[Row]) -> Row:
    """Returns the joint columns of the row with the largest joint ε; empty if no row has any."""
    stated = [row for row in seeds if row.get("joint_epsilon") is not None]
    if not stated:
        return {}
    most = max(stated, key=lambda row: row["joint_epsilon"])
    return {name: most[name] for name in JOINT}


@dataclass(frozen=True)
class Spread:
    """The mean of `count` numbers, their standard deviation, minimum `low` and maximum `high`.

    The range is given instead of a confidence interval: for two to five seeds, an interval depends
    more on the assumed normal distribution than on the seeds.
    """

    mean: float
    std: float
    low: float
    high: float
    count: int

    def to_row(self, name: str) -> Row:
        """Returns the columns of the metric `name`, with None for each if there are no numbers."""
        if not self.count:
            return {f"{name}_{part}": None for part in ("mean", "sd", "min", "max")}
        return {
            f"{name}_mean": self.mean,
            f"{name}_sd": self.std,
            f"{name}_min": self.low,
            f"{name}_max": self.high,
        }


def spread(numbers: Sequence[float]) -> Spread:
    """Returns the `Spread` of `numbers`.

    The standard deviation is 0 for a single number, or if the mean is infinite. Without numbers,
    all values are NaN.
    """
    if not numbers:
        return Spread(math.nan, math.nan, math.nan, math.nan, 0)
    mean = math.inf if math.inf in numbers else statistics.fmean(numbers)
    mean = min(max(mean, min(numbers)), max(numbers))  # rounding may exceed the range slightly
    spreads = len(numbers) > 1 and math.isfinite(mean)
    std = statistics.stdev(numbers) if spreads else 0.0
    return Spread(mean, std, min(numbers), max(numbers), len(numbers))


def write_tables(files: Files, keys: Sequence[str], rows: list[Row], rounds: list[Row]) -> None:
    """Writes the table of runs (CSV and Parquet), that of evaluated rounds, and the summary over
    seeds.
    """
    from pyarrow import csv, parquet

    make_folder(files.folder)
    table = _table(rows, ordered_columns(keys, rows))
    parquet_bytes = io.BytesIO()
    parquet.write_table(table, parquet_bytes)
    write_atomically(files.named(".parquet"), parquet_bytes.getvalue())
    for path, content in (
        (files.table, table),
        (files.rounds, _table(rounds)),
        (files.summary, _table(summary(keys, rows))),
    ):
        if not content.num_columns:
            path.unlink(missing_ok=True)
            continue
        buffer = io.BytesIO()
        csv.write_csv(content, buffer, csv.WriteOptions(quoting_style="needed"))
        write_atomically(path, buffer.getvalue())


def _table(rows: list[Row], order: Sequence[str] = ()) -> pyarrow.Table:
    """Returns a table with columns in `order`, or in order of appearance, each of one type."""
    import pyarrow

    names = order or list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pyarrow.table({name: _one_type(column) for name, column in columns.items()})


def _one_type(column: list[Any]) -> list[Any]:
    """Returns `column` with one type: integers with floats become floats; other mixtures, texts."""
    present = [value for value in column if value is not None]
    numbers = [value for value in present if not isinstance(value, bool | str)]
    if len(numbers) == len(present):
        integers = all(isinstance(value, int) for value in numbers)
        return column if integers else [None if v is None else float(v) for v in column]
    if len({type(value) for value in present}) == 1:
        return column
    return [None if value is None else str(value) for value in column]


def read_table(path: Path, words: Sequence[str] = ()) -> list[Row]:
    """Returns the rows of a CSV table that `write_tables` wrote.

    Args:
      path: the path of the table.
      words: names of columns that are read as text, even if all values look like numbers.

    Raises:
      Refused: if the file is missing or cannot be read.
    """
    import pyarrow
    from pyarrow import csv

    if not path.is_file():
        raise Refused(
            f"{path} does not exist, so the experiment has no table yet; run the experiment first"
        )
    try:
        as_text = dict.fromkeys([*words, "status", "reason", "cell"], pyarrow.string())
        rows: list[Row] = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=as_text, strings_can_be_null=False),
        ).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise Refused(f"{path} cannot be read: {error}; run the experiment again") from error
    return rows


_LATE = 100
"""Number of last rounds over whose evaluations an average is also reported."""
_NOT_LAST = {"seed", "cell", "round", "cohort", "clipped", "not_finite", "median_norm"}


def write_cells(
    files: Files,
    keys: Sequence[str],
    cells: Sequence[Cell],
    results: Mapping[str, Result | None],
    joint_guarantees: Sequence[Joint],
) -> None:
    """Writes the tables of the cells that have a result; writes nothing if none has.

    Args:
      files: the paths of the tables.
      keys: the key columns.
      cells: all cells.
      results: results of the cells, by name; None for cells that have not ended.
      joint_guarantees: the joint guarantee for each population.
    """
    joint_of = {name: joint for joint in joint_guarantees for name in joint.cells}
    rows: list[Row] = []
    rounds: list[Row] = []
    for cell in cells:
        result = results[cell.name]
        if result is None:
            continue
        measured: list[Row] = []
        if result["status"] == DONE:
            measured = list(_round_rows(files, cell, result))
            result = _with_measures_over_rounds(cell, measured, result)
        joint = joint_of[cell.name].columns(cell.name) if cell.name in joint_of else {}
        rows.append(result_row({**cell.values, **cell.tuned}, cell.seed, cell.name, result, joint))
        rounds += measured
    if rows:
        write_tables(files, keys, rows, rounds)


def _round_rows(files: Files, cell: Cell, result: Result) -> Iterator[Row]:
    """Yields a row per evaluated round, with sums of `TOTALS` so far; skips unreadable lines."""
    path = folder_of(files, cell) / "run" / "metrics.jsonl"
    outcome = result["outcome"]
    lines = regular.read_text(path, errors="replace").splitlines() if path.exists() else []
    totals = dict.fromkeys(TOTALS, 0.0)
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            measured = from_json(line)
            facts = {k: v for k, v in measured.items() if k not in ("format", "simulation_only")}
            simulated = measured.get("simulation_only", {})
            if simulated.keys() >= totals.keys():
                totals = {name: totals[name] + simulated[name] for name in totals}
                simulated = {**simulated, **totals}
            terms = {key: outcome.get(key) for key in ("delta", "simulation")}
            yield round_row(cell.values, cell.seed, cell.name, facts | terms | simulated)


def _with_measures_over_rounds(cell: Cell, rounds: Sequence[Row], result: Result) -> Result:
    """Returns `result` with two more values of its first metric: the best, and a late average.

    The best value on a test set is optimistic; it is reported in addition to the final value, in a
    separate column. The late average is over the evaluations in the last 100 rounds; None if the
    last evaluation is before round 100. Further metrics of the last evaluation are also added.
    """
    if not rounds or cell.config is None:
        return result
    outcome = result["outcome"]
    name, last = next(iter(outcome)), rounds[-1]
    scores = [
        (row["round"], score)
        for row in rounds
        if (score := number_or_none(row.get(name))) is not None
    ]
    late = [score for round, score in scores if round > last["round"] - _LATE]
    best = min if cell.config.loss.lower_is_better else max
    long = last["round"] >= _LATE
    over_rounds = {
        f"{name}_best": best((score for _, score in scores), default=None),
        f"{name}_last_{_LATE}": sum(late) / len(late) if late and long else None,
    }
    of_last_round = {key: value for key, value in last.items() if key not in {*outcome, *_NOT_LAST}}
    return {**result, "outcome": {**outcome, **over_rounds, **of_last_round}}
