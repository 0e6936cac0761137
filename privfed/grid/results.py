"""Converts results of a grid to rows of tables: one per run, or per evaluated round of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
DONE, REFUSED, FAILED = "done", "refused", "failed"
_FACTS = (
    "epsilon", "delta", "unit", "relation", "sampler", "accountant", "noise_multiplier",
    "rounds", "charges", "aborted", "stopped_at_budget", "simulation", "guarantee", "test_examples",
    "against", "uncovered",
)  # fmt: skip
TERMS = (
    "delta", "unit", "relation", "sampler", "accountant", "simulation", "guarantee", "against",
    "uncovered",
)  # fmt: skip
JOINT = ("joint_epsilon", "joint_cells", "joint_note")
"""Table columns about the joint guarantee over one population (`privfed.grid.joint_guarantee`)."""
_STATUS = ("seed", "status", "reason")
_BOOKS = ("seconds", "version", "cell")
_NO_MEASURE = {
    *_FACTS,
    "accountants",
    "prior",
    "run",
    "note",
    "public_clients",
    "start",
    "chosen",
    "guarantees",
    "disjoint",
    "budget",
    "budgets",
    "constant",
    "diverged",
    "not_learned",
    "excluded",
    "ledger_head",
    "lost_claims",
    "misbehaviour",
    "stopped_by_byzantine",
    "test_shared",
}


@dataclass(frozen=True)
class Files:
    """The paths of a grid's tables: files in `folder`, named after the grid file `grid`."""

    grid: Path
    folder: Path

    def named(self, ending: str) -> Path:
        """Returns the path of the file in `folder` whose name is that of the grid and then
        `ending`.
        """
        return self.folder / f"{self.grid.stem}{ending}"

    @property
    def tuning(self) -> Files:
        """The paths of the tables of the grid's tuning runs."""
        return Files(self.grid.with_name(f"{self.grid.stem}.tuning.toml"), self.folder)

    @property
    def table(self) -> Path:
        """The path of the table with a row per run (combination of varied values, and seed)."""
        return self.named(".csv")

    @property
    def rounds(self) -> Path:
        """The path of the table with a row per run and evaluated round."""
        return self.named(".rounds.csv")

    @property
    def summary(self) -> Path:
        """The path of the table with a row per combination of varied values, over its seeds."""
        return self.named(".summary.csv")


def row(
    values: Mapping[str, Any],
    seed: int,
    cell: str,
    result: Mapping[str, Any],
    joint: Mapping[str, Any],
) -> Row:
    """Returns the row of one run: varied keys, seed, status, metrics, guarantee, run time.

    Args:
      values: the values of the varied keys.
      seed: the run's seed.
      cell: the name of the run's cell.
      result: the result of the cell.
      joint: the columns of the joint guarantee (`Joint.columns`).
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
    """Returns the names in a run's outcome that are results, such as metrics: all except
    `_NO_MEASURE`.
    """
    return [name for name in outcome if name not in _NO_MEASURE]


def round_row(values: Mapping[str, Any], seed: int, cell: str, measured: Mapping[str, Any]) -> Row:
    """Returns the row of one evaluated round of a run, with the values in `measured`."""
    return {
        **{key: cell_of(value) for key, value in values.items()},
        "seed": seed,
        **{name: _number(value) for name, value in measured.items()},
        "cell": cell,
    }


def cell_of(value: Any) -> Any:
    """Returns a configuration's value as it is written in a field of a table.

    Texts, truth values, and numbers are unchanged; lists, sections, and integers beyond 64 bits
    become JSON.
    """
    if isinstance(value, bool | str | float):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    return json.dumps(value, default=str)


def _number(value: Any) -> Any:
    """Returns `value`, but infinity for the text "inf", by which JSON files denote it."""
    return math.inf if value == "inf" else value


def number_or_none(value: Any) -> float | None:
    """Returns `value` as a float, which may be infinite; None if it is not a number, or is NaN."""
    numeric = isinstance(value, int | float) and not math.isnan(value)
    return float(value) if numeric else None


def measures_of(keys: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Returns the columns of `rows` that are results, such as metrics, and not in `keys`."""
    names = dict.fromkeys(name for row in rows for name in row)
    others = {*keys, *_STATUS, *_FACTS, *JOINT, *_BOOKS}
    return [n for n in names if n not in others and not n.startswith("epsilon_")]


def ordered_columns(keys: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Returns the columns of `rows` in the order in which tables have them.

    The order is: keys, seed and status, metrics, guarantee (`_FACTS`), epsilon by accountant, joint
    guarantee, and seconds, version and cell. The columns `keys` are always included, other columns
    if any row has them.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    bounds = [name for name in names if name.startswith("epsilon_")]
    ordered = [*keys, *_STATUS, *measures_of(keys, rows), *_FACTS, *bounds, *JOINT, *_BOOKS]
    return [name for name in ordered if name in names or name in keys]
