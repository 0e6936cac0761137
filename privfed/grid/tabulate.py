"""The cells of a grid as rows of its tables: how each ended, and its measures by round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from accounting import regular
from accounting.documents import from_json
from privfed.grid.cell_results import Result, folder_of
from privfed.grid.cells import Cell
from privfed.grid.joint_guarantee import Joint
from privfed.grid.results import DONE, Files, Row, number_or_none, round_row, row
from privfed.grid.tables import write_tables
from privfed.round.tally import TOTALS

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
