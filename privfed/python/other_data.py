"""Other rows for a trained model, of whatever kind they are, and predictions of that kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privfed.config.config import Config
from privfed.config.overrides import assign
from privfed.config.reading import reassembled
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.sources.given_table import GivenTable
from privfed.data.sources.table import Table
from privfed.data.tables import array_table
from privfed.data.tables.arrow import is_pandas, is_table, settled
from privfed.data.tables.readable import Readable, TableFile, TableObject
from privfed.errors import Refused

_CALLED = "the rows"
"""What messages call what was passed."""


def other_rows(rows: Any) -> Callable[[Config], Config]:
    """How the configuration of a run changes for it to be used on `rows`."""

    def changed(config: Config) -> Config:
        raw, source = config.raw(), config.source
        if isinstance(rows, str | Path) and not isinstance(source, DeclaredTable):
            assign(raw, "data.path", str(rows))
            return reassembled(raw, config)
        if not isinstance(source, DeclaredTable):
            raise Refused(
                f"the run's people come from the source {config.names['source']!r}; expected the "
                "path of other data of that form"
            )
        of_tables = {key for part in (GivenTable, Table) for key in part.model_fields}
        kind: type[DeclaredTable] = Table
        data: dict[str, Any] = {"source": "table", "path": str(rows)}
        table = _readable(rows, source)
        if not isinstance(table, TableFile):
            kind, data = GivenTable, {"source": GivenTable.of(table)}
        client = raw["data"]["client"]
        names = table.names()
        client = client if client in names else ""  # nobody asks whose rows these are, nor where
        site = raw["data"].get("site", "")
        site = site if client and site in names else ""
        for key, value in raw["data"].items():
            if key not in of_tables or key in kind.model_fields:
                data.setdefault(key, value)
        raw["data"] = {**data, "client": client, "site": site}
        return reassembled(raw, config)

    return changed


def _readable(rows: Any, source: DeclaredTable) -> Readable:
    """The table that `rows` are. Raises `Refused`."""
    if isinstance(rows, str | Path):
        return TableFile(Path(rows), source.dialect)
    if isinstance(source, GivenTable) and source.shape:
        if isinstance(rows, tuple) or array_table.is_dataset(rows):
            return array_table.of_pair(rows, source.shape, _CALLED)
        return array_table.of_inputs(rows, source.shape, _CALLED)
    return TableObject(settled(rows), _CALLED, tuple(source.missing_words))


def in_kind_of(rows: Any, table: Mapping[str, np.ndarray]) -> Any:
    """`table` as one of the library that `rows` are of: pandas, or else Arrow."""
    if is_table(rows) and is_pandas(rows):
        import pandas

        return pandas.DataFrame(dict(table), index=rows.index)
    import pyarrow

    return pyarrow.table(dict(table))
