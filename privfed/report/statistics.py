"""The console tables of statistics that `privfed describe` released."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from accounting.statement import epsilon_at
from privfed.analytics.statistics_file import (
    STATISTICS,
    ColumnStatistics,
    IntervalEstimate,
    Statistics,
)
from privfed.data.tables.dates import iso_date
from privfed.report.tables import head_line, rows

_MOST_VALUES = 6


def statistics_tables(statistics: Statistics) -> tuple[Table, Table]:
    """Returns a table of statistics, and one of the release's guarantee.

    The first has a line for each column of the data, with 95 % confidence intervals.
    """
    columns = Table(box=None, header_style="cyan")
    for header in ("column", "empty", "range", "mean", "standard deviation", "median", "values"):
        columns.add_column(header, overflow="fold")
    for column in statistics.columns:
        columns.add_row(*(Text(cell) for cell in _cells(column)))
    epsilon = math.inf if statistics.epsilon == "inf" else statistics.epsilon
    facts = {
        "clients": f"{_counted(statistics.clients)}; {_counted(statistics.rows)} rows counted, at "
        f"most {statistics.rows_per_client} of each",
        "ε": epsilon_at(epsilon, statistics.delta, bool(statistics.note)),
        "unit": f"{statistics.unit}, {statistics.relation}, by {statistics.mechanism} noise",
        "ledger head": head_line(statistics.ledger_head, 1),
        "statistics": f"{statistics.run}/{STATISTICS}",
        "next": f"privfed declare --from {statistics.run} --label COLUMN",
        **({"note": statistics.note} if statistics.note else {}),
    }
    return columns, rows(facts)


def _cells(column: ColumnStatistics) -> Sequence[str]:
    """Returns the cells of the line about one column of the data."""
    numbers, values = column.numbers, column.values
    shown = [
        f"{each.value}{'…' if each.cut else ''} {_counted(each.count)}"
        for each in values[:_MOST_VALUES]
    ]
    more = [f"{len(values) - _MOST_VALUES} more"] if len(values) > _MOST_VALUES else []
    if column.unnamed and column.unnamed.low:
        more.append(f"other values {_counted(column.unnamed)}")
    summary = ["—"] * 4
    if numbers is not None:
        day = iso_date if column.kind == "dates" else _number
        low, high = numbers.range
        summary = [
            f"{day(low)} to {day(high)}",
            day(numbers.mean.value),
            _number(numbers.std.value),
            day(numbers.quantiles["0.5"].value),
        ]
    return [column.name, _share(column.missing), *summary, ", ".join([*shown, *more]) or "—"]


def _counted(count: IntervalEstimate) -> str:
    """Formats a count and its interval: 120 (80 to 160)."""
    ends = (count.low or 0.0, count.value if count.high is None else count.high)
    return f"{count.value:.0f} ({ends[0]:.0f} to {ends[1]:.0f})"


def _share(share: IntervalEstimate) -> str:
    return f"{share.value:.1%} (to {share.high or 0.0:.1%})"


def _number(value: float) -> str:
    return f"{value:.4g}"
