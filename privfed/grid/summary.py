"""What a cell came to over its seeds: one row of the summary, and the spread of any numbers.

The measure that figures show and tuning compares where a grid names none: that of its loss.

A loss names its first measure and says whether less of it is better. Of whatever else is measured,
more is better, but for losses.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privfed.errors import Refused
from privfed.grid.pictures.figures import Figure, holds
from privfed.grid.results import DONE, JOINT, TERMS, Row, measures_of
from privfed.models.loss import Loss

Losses = Sequence[tuple[Mapping[str, Any], Loss]]
"""The loss of each cell, beside the keys that vary, as a table holds them."""


def less_is_better(loss: Loss, measure: str) -> bool:
    """Whether less of `measure` is better, which may be the loss's own, or its best or late one."""
    return loss.lower_is_better if measure.startswith(loss.measure) else measure.endswith("loss")


def figure_with_measure(figure: Figure, losses: Losses) -> Figure:
    """`figure` with the measure and the direction that it leaves out.

    Raises `Refused` where the cells that it shows have several.
    """
    losses_shown = [loss for values, loss in losses if holds(values, figure.where)]
    if not losses_shown:
        return figure  # every cell is refused, and says why
    measure = figure.measure or _only(
        losses_shown, f"figure {figure.name!r}: measure", "show some by where"
    )
    lower = _direction(figure.lower_is_better, losses_shown, measure)
    return figure.model_copy(update={"measure": measure, "lower_is_better": lower})


def tuning_measure(by: str, lower_is_better: bool | None, loss: Loss | None) -> tuple[str, bool]:
    """What a cell with this loss (None: it is refused) is tuned by, and whether less is better."""
    losses = [] if loss is None else [loss]
    measure = by or next((loss.measure for loss in losses), "")
    return measure, _direction(lower_is_better, losses, measure)


def _direction(stated: bool | None, losses: Sequence[Loss], measure: str) -> bool:
    if stated is not None:
        return stated
    return any(less_is_better(loss, measure) for loss in losses)


def refuse_several_measures(losses: Sequence[Loss]) -> None:
    """Raises `Refused` where what is tried for one cell has measures that do not compare."""
    _only(losses, "tune.by", "vary the loss in [grid]")


def _only(losses: Sequence[Loss], key: str, instead: str) -> str:
    """The one measure of `losses`. Raises `Refused`, with what to do `instead`, for several."""
    measures = list(dict.fromkeys(loss.measure for loss in losses))
    if len(measures) > 1:
        raise Refused(
            f"{key} is missing, and the losses of these cells have several: {', '.join(measures)}; "
            f"name one that all of them have, or {instead}"
        )
    return measures[0]


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
