"""A grid's tables on disk: of its cells, of evaluated rounds, and of the cells over their seeds.

Everything that is drawn is drawn from these tables alone, so that a study needs no run directories.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting import regular
from accounting.documents import from_json
from accounting.durable import make_folder, write_atomically
from privfed.errors import Refused
from privfed.grid.cells import Cell, Result, folder_of
from privfed.grid.joint_guarantee import Joint
from privfed.grid.results import DONE, Files, Row, number_or_none, ordered_columns, round_row, row
from privfed.grid.summary import summary
from privfed.round.tally import TOTALS

if TYPE_CHECKING:
    import pyarrow


def write_tables(files: Files, keys: Sequence[str], rows: list[Row], rounds: list[Row]) -> None:
    """Write the table (CSV and Parquet), every evaluated round, and the summary over seeds."""
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
    """A table with columns in `order`, or as rows first name them, each of one type."""
    import pyarrow

    names = order or list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pyarrow.table({name: _one_type(column) for name, column in columns.items()})


def _one_type(column: list[Any]) -> list[Any]:
    """`column` as integers, as real numbers, or as it is; as text where it has several types."""
    present = [value for value in column if value is not None]
    numbers = [value for value in present if not isinstance(value, bool | str)]
    if len(numbers) == len(present):
        integers = all(isinstance(value, int) for value in numbers)
        return column if integers else [None if v is None else float(v) for v in column]
    if len({type(value) for value in present}) == 1:
        return column
    return [None if value is None else str(value) for value in column]


def read_table(path: Path, words: Sequence[str] = ()) -> list[Row]:
    """The rows of a table that `write_tables` wrote; `words` are columns of text.

    Raises `Refused` where there is none.
    """
    import pyarrow
    from pyarrow import csv

    if not path.is_file():
        raise Refused(f"{path} does not exist: the experiment has no table yet; run it first")
    try:
        as_text = dict.fromkeys([*words, "status", "reason", "cell"], pyarrow.string())
        rows: list[Row] = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=as_text, strings_can_be_null=False),
        ).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    return rows


_LATE = 100
"""Rounds at the end whose average is told beside the last one."""
_NOT_LAST = {"seed", "cell", "round", "cohort", "clipped", "not_finite", "median_norm"}


def write_cells(
    files: Files,
    keys: Sequence[str],
    cells: Sequence[Cell],
    results: Mapping[str, Result | None],
    joint_guarantees: Sequence[Joint],
) -> None:
    """Write the tables of those of `cells` that ended, if any; `keys` are the columns that vary."""
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
        rows.append(row({**cell.values, **cell.tuned}, cell.seed, cell.name, result, joint))
        rounds += measured
    if rows:
        write_tables(files, keys, rows, rounds)


def _round_rows(files: Files, cell: Cell, result: Result) -> Iterator[Row]:
    """What a cell's run measured round by round; a line that a power cut tore is left out."""
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
    """`result` with the best and the late average of its first measure, and the last round's rest.

    The best of what was measured on a test set flatters; it stands beside the final value and is
    named so. The late average is over the last 100 rounds, where there are so many.
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
