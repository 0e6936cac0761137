"""An example of the form that a table's declaration gives it, where nobody's rows are at hand."""

from __future__ import annotations

from datetime import date
from typing import Any

from privfed.data.federation import Examples
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.tables.cells import as_text
from privfed.data.tables.dates import ISO
from privfed.data.tables.readable import TableObject
from privfed.errors import Refused


def declared_example(source: DeclaredTable) -> Examples:
    """One example that is nobody's: each column at its least, or first, declared value.

    Raises `Refused` for patterns of columns: how many there are stands in nobody's declaration.
    """
    if source.squared_norm is None:
        raise Refused(
            "data.features names columns by a pattern, and without any table nobody knows how many "
            "there are; name each column, or a public test set (data.test_path)",
            key="data.features",
        )
    return declared_columns(source)


def declared_columns(source: DeclaredTable) -> Examples:
    """The same, with a single column in the place of those that a pattern names."""
    import pyarrow  # plans without a table start without it

    row: dict[str, Any] = {name: float(low) for name, (low, _) in source.features.items()}
    for name, dates in source.dates.items():
        first = date.fromisoformat(dates.first[:10])
        row[name] = first.isoformat() if dates.format == ISO else first.strftime(dates.format)
    row |= {name: as_text(values[0]) for name, values in source.categories.items()}
    labels = [source.label] if isinstance(source.label, str) else source.label
    least = source.labels[0] if source.labels else min(source.label_bounds, default=0.0)
    row |= dict.fromkeys(labels, least)
    table = pyarrow.table({name: [value] for name, value in row.items()})
    return source.load_from(TableObject(table, "the declared columns"), anybody=True)
