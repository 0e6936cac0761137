"""The noise that one epsilon needs, and the time of its accounting: CSV files and their tables.

    python -m experiments.less_noise.tables          # minutes on one core
    python -m experiments.less_noise.tables --print  # from the CSV files alone

Writes noise.csv, another one next to each grid, and seconds.csv, and prints the tables of the page.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accounting.durable import write_atomically
from experiments.less_noise.accounting_time import accounting_time
from experiments.less_noise.noise_table import long_and_short, noise_table, of_runs
from experiments.less_noise.page import accuracies, differences, noises, noises_by_epsilon, times

HERE = Path(__file__).parent
GRIDS = {"digits": 10, "mnist": 20}
"""Number of rounds in which a client takes part once, by grid."""
Row = dict[str, str]


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    words.add_argument("--print", action="store_true", help="from the CSV files alone")
    if not words.parse_args().print:
        for name, apart in GRIDS.items():
            write(noise_table(of_runs(apart)), HERE / name / "noise.csv")
        write(noise_table(long_and_short()), HERE / "noise.csv")
        write(accounting_time(), HERE / "seconds.csv")
    print("\n\n".join(tables()))


def tables() -> list[str]:
    """Returns all tables of the page, as Markdown, from the files in this folder."""
    of_grids = [
        table
        for name in GRIDS
        for table in (
            accuracies(read(HERE / name / "grid.summary.csv")),
            differences(read(HERE / name / "grid.csv")),
            noises_by_epsilon(read(HERE / name / "noise.csv")),
        )
    ]
    return [*of_grids, noises(read(HERE / "noise.csv")), times(read(HERE / "seconds.csv"))]


def write(rows: Iterable[Any], path: Path) -> None:
    """Writes dataclasses of one kind as a table, numbers to six digits."""
    cells = [{name: _cell(value) for name, value in asdict(row).items()} for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(cells[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    write_atomically(path, out.getvalue().encode())


def read(path: Path) -> Sequence[Row]:
    """Returns the lines of a table."""
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
