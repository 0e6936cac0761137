"""Measurements as a table, from which figures are drawn (`pictures`)."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Measured:
    """Seconds of `work` done in one `way`: the median, and quartiles of the repeats.

    `setting` describes the cores used, `private` states whether DP was on. `size` is the growing
    quantity, 0 for none.
    """

    benchmark: str
    work: str
    way: str
    setting: str
    private: bool
    size: float
    low: float
    seconds: float
    high: float

    @classmethod
    def of(
        cls, benchmark: str, work: str, way: str, setting: str, private: bool, each: Sequence[float]
    ) -> Self:
        low, middle, high = statistics.quantiles(each, n=4)
        return cls(benchmark, work, way, setting, private, 0.0, low, middle, high)


COLUMNS = tuple(field.name for field in fields(Measured))


def add_rows(path: Path, rows: Iterable[Measured]) -> None:
    """Appends `rows` to the table at `path`, which is created if needed."""
    begun = path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not begun:
            writer.writerow(COLUMNS)
        for row in rows:
            numbers = [f"{value:.6g}" for value in astuple(row)[5:]]
            writer.writerow([*astuple(row)[:4], "yes" if row.private else "no", *numbers])


def read_rows(path: Path) -> list[Measured]:
    """Returns the rows of the table at `path`."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Measured:
    benchmark, work, way, setting = (line[name] for name in COLUMNS[:4])
    size, low, seconds, high = (float(line[name]) for name in COLUMNS[5:])
    private = line["private"] == "yes"
    return Measured(benchmark, work, way, setting, private, size, low, seconds, high)
