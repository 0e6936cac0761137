"""What a cell came to over its seeds: one row of the summary, and the spread of any numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privfed.grid.results import DONE, JOINT, TERMS, Row, measures_of


def summary(keys: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """A row per cell, over its seeds that are done: mean, deviation and range of each measure."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    measures = [*measures_of(keys, rows), "epsilon"]
    return [
        dict(zip(keys, values, strict=True)) | _over_seeds(seeds, measures)
        for values, seeds in cells.items()
    ]


def _over_seeds(seeds: Sequence[Row], measures: Sequence[str]) -> Row:
    """One row over the `seeds` of a cell."""
    done = [row for row in seeds if row["status"] == DONE]
    line: Row = {"seeds": len(done), "not_done": len(seeds) - len(done)}
    for name in TERMS:
        line[name] = next((row[name] for row in done if row.get(name) is not None), None)
    for name in measures:
        numbers = [float(row[name]) for row in done if row.get(name) is not None]
        line |= spread(numbers).to_row(name)
    return line | _joint_of(seeds)


def _joint_of(seeds: Sequence[Row]) -> Row:
    """The joint columns of the seed whose population most was spent of; none where none has any."""
    stated = [row for row in seeds if row.get("joint_epsilon") is not None]
    if not stated:
        return {}
    most = max(stated, key=lambda row: row["joint_epsilon"])
    return {name: most[name] for name in JOINT}


@dataclass(frozen=True)
class Spread:
    """The mean of `count` numbers, their standard deviation, and the least and the greatest.

    The range stands there, since an interval from two to five seeds says more of the normal
    distribution than of the seeds.
    """

    mean: float
    deviation: float
    low: float
    high: float
    count: int

    def to_row(self, name: str) -> Row:
        """The columns of the measure `name`; empty for no numbers."""
        if not self.count:
            return {f"{name}_{part}": None for part in ("mean", "sd", "min", "max")}
        return {
            f"{name}_mean": self.mean,
            f"{name}_sd": self.deviation,
            f"{name}_min": self.low,
            f"{name}_max": self.high,
        }


def spread(numbers: Sequence[float]) -> Spread:
    """The `Spread` of `numbers`. The deviation of one number, or of infinite ones, is zero."""
    if not numbers:
        return Spread(math.nan, math.nan, math.nan, math.nan, 0)
    mean = math.inf if math.inf in numbers else statistics.fmean(numbers)
    mean = min(max(mean, min(numbers)), max(numbers))  # rounding may lead it a little outside
    spreads = len(numbers) > 1 and math.isfinite(mean)
    deviation = statistics.stdev(numbers) if spreads else 0.0
    return Spread(mean, deviation, min(numbers), max(numbers), len(numbers))
