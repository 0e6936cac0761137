"""Writes a run file for training from released statistics instead of a public sample.

The file's content follows from a charged release and from public constants, so it costs no further
privacy. Its `privacy.prior` names the run directory whose ledger charged the release.
"""

from __future__ import annotations

import math
from typing import Any

from privfed.analytics.statistics_file import ColumnStatistics, NumberStatistics, Statistics
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.text import ceiling
from privfed.data.declaring.columns import (
    CategoryColumn,
    ColumnKind,
    DateColumn,
    LeftOutColumn,
    NumericColumn,
)
from privfed.data.declaring.declaration import Declaration, LabelKind, SampleSites, declared_run
from privfed.data.tables.dates import Dates, iso_date
from privfed.data.tables.delimited import Dialect

_MOST_CLASSES = 17
"""Number of integers (0 to 16) that have a cell of their own."""
_LONGER = (
    "the words of this column are longer than the letters that were read; describe the column with "
    "more --letters"
)
_RARE = 0.05
"""Largest fraction of rows with words in the column of a numeric label."""


def declare_described(statistics: Statistics, label: str) -> str:
    """Returns the text of a run file that trains a model of `label` on the described population.

    Args:
      statistics: the released statistics of the population.
      label: the column to predict.

    Raises:
      Refused: if the column was not described, or its statistics do not determine a kind of label.
    """
    column = statistics.column(label)
    if column is None:
        names = ", ".join(each.name for each in statistics.columns)
        raise Refused(
            f"--label is {label!r}, but that column was not described; expected one of {names}"
        )
    data = statistics.data
    kinds = {each.name: _kind(each, data) for each in statistics.columns if each.name != label}
    form = {key: data[key] for key in ("delimiter", "encoding", "decimal") if data.get(key)}
    declared = Declaration(
        data["path"],
        data["client"],
        label,
        _label(column),
        kinds,
        Dialect(**form),
        sites=_sites(data),
        known=_known(statistics),
    )
    epsilon = math.inf if statistics.epsilon == "inf" else statistics.epsilon
    cost = f"epsilon {ceiling(epsilon)}, delta {statistics.delta:g}"
    header = [
        f"# Written from statistics that were released at {cost},",
        "# which privacy.prior counts.",
        (
            "# Bounds cover the values estimated from noisy sums: values beyond are clipped, and "
            "rare"
        ),
        "# values count as no category. The budget below is for the description and training.",
    ]
    return declared_run(header, declared, _sections(statistics))


def _sections(statistics: Statistics) -> dict[str, dict[str, Any]]:
    """Returns the keys and values, by section of a run file, that a run needs so that its charges
    compose with those of the release; [data] is left out.
    """
    seed = {"seed": statistics.seed} if statistics.seed else {}
    seeded = {"randomness": "seeded"} if statistics.randomness == "seeded" else {}
    prior = [*statistics.earlier, statistics.run]
    privacy = {"delta": statistics.delta, **statistics.privacy, "prior": prior}
    joint = find("mechanism", statistics.mechanism, "privacy.mechanism").joint
    return {
        "run": {**seeded, **seed},
        "cohort": {"sampler": "full"} if joint else {},
        "privacy": privacy,
        "secure": statistics.secure,
    }


def _known(statistics: Statistics) -> dict[str, Any]:
    """Returns the keys of [data] that define the described population."""
    keys = ["clients", "population", "holdout", "holdout_fraction", "test_path"]
    if statistics.data.get("site_partition") == "elsewhere":
        keys += ["sites", "sites_per_client", "site_partition"]
    data = {key: statistics.data[key] for key in keys if statistics.data.get(key)}
    return {key: value for key, value in data.items() if key != "holdout" or value != "test"}


def _sites(data: dict[str, Any]) -> SampleSites | None:
    if not data.get("site"):
        return None
    return SampleSites(data["site"], data["sites"], data["sites_per_client"])


def _kind(column: ColumnStatistics, data: dict[str, Any]) -> ColumnKind:
    """Returns the kind of data by which a run file declares a column, with the reason as text.

    Declared values and dates have their own kinds. Any other column is numeric (left out if it is
    constant) if numbers are visible and at most half of its rows hold words. Otherwise its
    categories are the words read from the sums; with fewer than two, it is left out.
    """
    numbers, words = column.numbers, column.words.value
    if column.kind == "values":
        values = [each.value for each in column.values]
        return CategoryColumn(f"the {len(values)} requested values", values, True)
    if column.kind == "dates":
        dates = Dates.model_validate(data["dates"][column.name])
        return _date_column(numbers, dates)
    if numbers is not None and words <= 0.5:
        low, high = numbers.range
        if low == high:
            return LeftOutColumn(f"{low:g} in all visible rows", (low - 1.0, high + 1.0))
        odd = tuple(each.value for each in column.values if not each.cut)
        part = 1 - numbers.outside.value
        why = f"{part:.0%} of its numbers seen here, mean {numbers.mean.value:.4g}"
        why += f"; {column.missing.value:.0%} empty" if column.missing.value >= 0.005 else ""
        return NumericColumn(why, (low, high), numbers.quantiles["0.5"].value, odd)
    values = [each.value for each in column.values if not each.cut]
    cut = sum(each.count.value for each in column.values if each.cut)
    if len(values) < 2:
        return LeftOutColumn(_LONGER if cut else "too few of its words were read, or none was seen")
    named = sum(each.count.value for each in column.values if not each.cut)
    others = cut + (column.unnamed.value if column.unnamed else 0.0)
    share = named / (named + others) if named + others else 0.0
    why = f"{len(values)} words read from the sums, {share:.0%} of all; others are no category"
    return CategoryColumn(why, sorted(values), True)


def _date_column(numbers: NumberStatistics | None, dates: Dates) -> ColumnKind:
    """Returns a date column with the range that is visible through the noise.

    If `numbers` is None (no date is visible), the range is the declared one.
    """
    if numbers is None:
        return DateColumn("as requested", dates.first, dates.last, dates.format, dates.first)
    first, last = (iso_date(end) for end in numbers.range)
    middle = iso_date(numbers.quantiles["0.5"].value)
    return DateColumn(f"dates seen from {first} to {last}", first, last, dates.format, middle)


def _label(column: ColumnStatistics) -> LabelKind:
    """Returns the kind of the label.

    Declared values are its classes. Otherwise numbers count only if at most 5 % of the column's
    rows hold words, and words only if no numbers are visible. Raises `Refused` if these show
    neither two classes nor a range of numbers, or if the label is a date.
    """
    values, numbers = [each.value for each in column.values if not each.cut], column.numbers
    if column.kind == "values" and values == [str(n) for n in range(len(values))]:
        return _classes({"classes": len(values)}, len(values), "integers, as requested")
    if column.kind == "values":
        return _classes({"labels": values}, len(values), "classes, as requested")
    if column.kind == "dates":
        raise Refused(
            f"--label is {column.name!r}, but no loss predicts dates; name another column"
        )
    if numbers is not None and column.words.value <= _RARE:
        if (classes := _whole_classes(numbers)) >= 2:
            return _classes({"classes": classes}, classes, f"integers, 0 to {classes - 1}")
        low, high = numbers.range
        if low < high:
            why = f"numbers, {1 - numbers.outside.value:.0%} of them here; beyond these, clipped"
            return LabelKind({"label_bounds": [low, high]}, "squared_error", why)
    if len(values) >= 2 and numbers is None:
        return _classes({"labels": sorted(values)}, len(values), "words read from the sums")
    raise Refused(
        f"--label: too little was seen of {column.name!r}; describe it at a larger epsilon, or "
        "declare its values by hand and describe the others"
    )


def _whole_classes(numbers: NumberStatistics) -> int:
    """Returns the number of classes if at least 90 % of the numbers are integers from 0 to 16, else
    0.

    The classes are 0, 1, … up to the largest integer whose count has a 95 % interval above 0;
    there are none, and the result is 0, without such an integer.
    """
    total = numbers.count.value
    points = [cell for cell in numbers.histogram if cell.low == cell.high and cell.low is not None]
    values = [cell.low for cell in points if cell.low is not None and (cell.count.low or 0.0) > 0.0]
    at_points = sum(cell.count.value for cell in points)
    few = total > 0 and at_points >= (1.0 - 2 * _RARE) * total
    return min(int(max(values)) + 1, _MOST_CLASSES) if few and values and min(values) >= 0 else 0


def _classes(declared: dict[str, Any], classes: int, why: str) -> LabelKind:
    return LabelKind(declared, "binary_cross_entropy" if classes == 2 else "cross_entropy", why)
