"""What a grid's cells came to: one tidy table, a row per cell and seed, and its summary.

Everything that is drawn is drawn from these tables alone, so that a study needs no run directories.
"""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting.durable import make_folder, write_atomically
from privfed.errors import Refused

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]
DONE, REFUSED, FAILED = "done", "refused", "failed"
_FACTS = (
    "epsilon", "delta", "unit", "relation", "sampler", "accountant", "noise_multiplier",
    "rounds", "charges", "aborted", "stopped_at_budget", "simulation", "guarantee", "test_examples",
)  # fmt: skip
_SAID = ("delta", "unit", "relation", "sampler", "accountant", "simulation", "guarantee")
_JOINT = ("joint_epsilon", "joint_cells", "joint_note")
"""What all cells over the same people say together (`privfed.grid.joint_guarantee`)."""
_BEFORE = ("seed", "status", "reason")
_AFTER = ("seconds", "version", "cell")
_NO_MEASURE = {
    *_FACTS,
    "accountants",
    "prior",
    "run",
    "note",
    "public_clients",
    "start",
    "guarantees",
    "disjoint",
    "uncovered",
    "budget",
    "budgets",
    "constant",
    "diverged",
    "ledger_head",
    "test_shared",
}


@dataclass(frozen=True)
class Files:
    """The tables of the grid file `grid`, in `folder`, under its own name."""

    grid: Path
    folder: Path

    def named(self, ending: str) -> Path:
        return self.folder / f"{self.grid.stem}{ending}"

    @property
    def tuning(self) -> Files:
        """Those of the runs that it was tuned on."""
        return Files(self.grid.with_name(f"{self.grid.stem}.tuning.toml"), self.folder)

    @property
    def table(self) -> Path:
        return self.named(".csv")

    @property
    def rounds(self) -> Path:
        return self.named(".rounds.csv")

    @property
    def summary(self) -> Path:
        return self.named(".summary.csv")


def row(
    values: Mapping[str, Any],
    seed: int,
    cell: str,
    result: Mapping[str, Any],
    joint: Mapping[str, Any],
) -> Row:
    """One line of the table: varied keys, seed, how it ended, measures, and what epsilon means.

    `joint` is what all cells over the same people say together.
    """
    outcome = result.get("outcome", {})
    measures = {name: outcome[name] for name in measures_in(outcome)}
    facts = {key: _number(outcome.get(key)) for key in _FACTS}
    bounds = {f"epsilon_{k}": _number(v) for k, v in outcome.get("accountants", {}).items()}
    return {
        **{key: cell_of(value) for key, value in values.items()},
        "seed": seed,
        "status": result["status"],
        "reason": result.get("reason", ""),
        **measures,
        **facts,
        **bounds,
        **joint,
        "seconds": result.get("seconds"),
        "version": result.get("version"),
        "cell": cell,
    }


def measures_in(outcome: Mapping[str, Any]) -> list[str]:
    """Which keys of a run's outcome are measures."""
    return [name for name in outcome if name not in _NO_MEASURE]


def round_row(values: Mapping[str, Any], seed: int, cell: str, measured: Mapping[str, Any]) -> Row:
    """One evaluated round of a cell."""
    return {
        **{key: cell_of(value) for key, value in values.items()},
        "seed": seed,
        **{name: _number(value) for name, value in measured.items()},
        "cell": cell,
    }


def cell_of(value: Any) -> Any:
    """A configuration's value as a table holds it."""
    if isinstance(value, bool | str | float):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    return json.dumps(value, default=str)


def _number(value: Any) -> Any:
    """JSON has no infinity, and says "inf"."""
    return math.inf if value == "inf" else value


def number_or_none(value: Any) -> float | None:
    """`value`, where it is a number; NaN (which JSON holds as null) is none."""
    numeric = isinstance(value, int | float) and not math.isnan(value)
    return float(value) if numeric else None


def measures_of(keys: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The columns that are measures: neither keys nor facts nor book-keeping."""
    names = dict.fromkeys(name for row in rows for name in row)
    others = {*keys, *_BEFORE, *_FACTS, *_JOINT, *_AFTER}
    return [n for n in names if n not in others and not n.startswith("epsilon_")]


def _ordered(keys: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Keys, how it ended, measures, facts, bounds, book-keeping: whatever the first row lacks."""
    names = dict.fromkeys(name for row in rows for name in row)
    bounds = [name for name in names if name.startswith("epsilon_")]
    wanted = [*keys, *_BEFORE, *measures_of(keys, rows), *_FACTS, *bounds, *_JOINT, *_AFTER]
    return [name for name in wanted if name in names or name in keys]


def write_tables(files: Files, keys: Sequence[str], rows: list[Row], rounds: list[Row]) -> None:
    """The table (CSV and Parquet), every evaluated round, and the summary over seeds."""
    from pyarrow import csv, parquet

    make_folder(files.folder)
    table = _table(rows, _ordered(keys, rows))
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
        out = io.BytesIO()
        csv.write_csv(content, out, csv.WriteOptions(quoting_style="needed"))
        write_atomically(path, out.getvalue())


def _table(rows: list[Row], order: Sequence[str] = ()) -> pyarrow.Table:
    """Columns in `order`, or as rows first name them; one type each."""
    import pyarrow

    names = order or list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pyarrow.table({name: _one_type(column) for name, column in columns.items()})


def _one_type(column: list[Any]) -> list[Any]:
    there = [value for value in column if value is not None]
    numbers = [value for value in there if not isinstance(value, bool | str)]
    if len(numbers) == len(there):
        whole = all(isinstance(value, int) for value in numbers)
        return column if whole else [None if v is None else float(v) for v in column]
    if len({type(value) for value in there}) == 1:
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


def summary(keys: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Per cell, over its seeds that are done: mean, deviation and range of each measure."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for one in rows:
        groups.setdefault(tuple(one.get(key) for key in keys), []).append(one)
    out = []
    for values, members in groups.items():
        done = [one for one in members if one["status"] == DONE]
        line: Row = dict(zip(keys, values, strict=True)) | {"seeds": len(done)}
        line["not_done"] = len(members) - len(done)
        for name in _SAID:
            line[name] = next((one[name] for one in done if one.get(name) is not None), None)
        for name in [*measures_of(keys, rows), "epsilon"]:
            numbers = [float(one[name]) for one in done if one.get(name) is not None]
            line |= spread(numbers).to_row(name)
        out.append(line | _joint_of(members))
    return out


def _joint_of(members: Sequence[Row]) -> Row:
    """The most that is spent of any population that a cell's seeds are about."""
    stated = [line for line in members if line.get("joint_epsilon") is not None]
    if not stated:
        return {}
    return {name: max(stated, key=lambda line: line["joint_epsilon"])[name] for name in _JOINT}


@dataclass(frozen=True)
class Spread:
    """Mean of `count` numbers, their standard deviation, and their least and greatest.

    The range, since an interval from two to five seeds says more of the normal distribution than
    of the seeds.
    """

    mean: float
    deviation: float
    low: float
    high: float
    count: int

    def to_row(self, name: str) -> Row:
        if not self.count:
            return {f"{name}_{part}": None for part in ("mean", "sd", "min", "max")}
        return {
            f"{name}_mean": self.mean,
            f"{name}_sd": self.deviation,
            f"{name}_min": self.low,
            f"{name}_max": self.high,
        }


def spread(numbers: Sequence[float]) -> Spread:
    """Of one number, or of infinite ones, the deviation is zero."""
    if not numbers:
        return Spread(math.nan, math.nan, math.nan, math.nan, 0)
    mean = math.inf if math.inf in numbers else statistics.fmean(numbers)
    mean = min(max(mean, min(numbers)), max(numbers))  # rounding may lead it a little outside
    known = len(numbers) > 1 and math.isfinite(mean)
    deviation = statistics.stdev(numbers) if known else 0.0
    return Spread(mean, deviation, min(numbers), max(numbers), len(numbers))
