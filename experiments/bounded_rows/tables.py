"""Tables of the study: measured and written as CSV files, and printed as Markdown from them.

python -m experiments.bounded_rows.tables          # two minutes on one core
python -m experiments.bounded_rows.tables --print  # from the CSV files alone
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from accounting.durable import write_atomically
from experiments.bounded_rows.cohort import Projected
from experiments.bounded_rows.costs import cohort_costs, costs
from experiments.bounded_rows.parameters import Parameters
from experiments.bounded_rows.soundness import all_tests, few_tests

HERE = Path(__file__).parent
CLIENTS, LENGTHS, BOUND = 50, (10_000, 100_000, 1_000_000), 2**18
_TERMS = {
    ("mean", "after_bound"): "no bound",
    ("norm bound", "after_bound"): "norm bound, not proven",
    ("norm bound", "before_bound"): "norm bound, proven",
    ("centered clipping", "after_bound"): "centered clipping, not proven",
    ("centered clipping", "before_bound"): "centered clipping, proven",
}
Row = dict[str, str]


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words.add_argument("--print", action="store_true", help="from the CSV files alone")
    if not words.parse_args().print:
        source = np.random.default_rng(0)
        lengths = [Parameters(length, BOUND) for length in LENGTHS]
        write(
            [
                cost
                for each in lengths
                for cost in (
                    *costs(each, CLIENTS, source),
                    *cohort_costs(Projected(each.length, each.bound), CLIENTS, source),
                )
            ],
            "costs.csv",
        )
        trials = [*few_tests(64, 2_000, source), *all_tests(lengths[1], 100, source)]
        write(trials, "soundness.csv")
    print("\n\n".join(tables()))


def tables() -> list[str]:
    """Returns all tables of the page, as Markdown."""
    return [_costs(read(HERE / "costs.csv")), _soundness(read(HERE / "soundness.csv")), _gains()]


def write(rows: Iterable[Any], name: str) -> None:
    """Writes dataclasses of one kind as a table, numbers to four digits."""
    cells = [{key: _cell(value) for key, value in asdict(row).items()} for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(cells[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    write_atomically(HERE / name, out.getvalue().encode())


def read(path: Path) -> Sequence[Row]:
    """Returns the lines of a table."""
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def _costs(rows: Sequence[Row]) -> str:
    steps = dict.fromkeys((row["party"], row["step"]) for row in rows)
    cells = {(row["length"], row["party"], row["step"]): row for row in rows}
    lines = [
        [party, step, *(_cost(cells[str(length), party, step]) for length in LENGTHS)]
        for party, step in steps
    ]
    return _markdown(["", "", *(f"d = {length:,}" for length in LENGTHS)], lines)


def _cost(row: Row) -> str:
    taken, size = 1000 * float(row["seconds"]), int(row["sent"]) / 1000
    return f"{taken:,.1f} ms" + (f", {size:,.1f} kB" if size else "")


def _soundness(rows: Sequence[Row]) -> str:
    lines = (
        [
            row["row"],
            f"{int(row['length']):,}",
            row["tests"],
            f"{int(row['accepted']):,} of {int(row['trials']):,}",
            f"{float(row['bound']):.2g}",
        ]
        for row in rows
    )
    return _markdown(["row", "d", "tests", "accepted", "at most"], lines)


def _gains() -> str:
    """Returns accuracy under attack with and without enforced bounds, from another study."""
    folder = HERE.parent / "sums_against_rows"
    rows = [*read(folder / "strengths.summary.csv"), *read(folder / "grid.summary.csv")]
    keys = ("method", "attack.stage", "attack.name", "attack.strength")
    cells = {tuple(row.get(key, "") for key in keys): row for row in rows}
    attacks = (("ipm", "1"), ("ipm", "3"), ("ipm", "10"), ("adaptive", ""))
    lines = (
        [name, *(_accuracy(cells[f"{method} (masks)", stage, *attack]) for attack in attacks)]
        for (method, stage), name in _TERMS.items()
    )
    return _markdown(["", "reversed mean x 1", "x 3", "x 10", "adaptive"], lines)


def _accuracy(row: Row) -> str:
    mean, std = (100 * float(row[f"accuracy_{of}"]) for of in ("mean", "sd"))
    return f"{mean:.1f} ± {std:.1f}"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
