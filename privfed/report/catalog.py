"""The table of the catalogue of parts."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from privfed.config.catalog import key_of


def catalog_table(catalog: Mapping[str, Mapping[str, str]]) -> Table:
    """Returns every part with its line (kind -> name -> line), under the key that names it."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for kind, parts in catalog.items():
        table.add_row(Text(_placed(key_of(kind)), style="bold"), "")
        for name, line in parts.items():
            table.add_row(Text(f"  {name}", style="cyan"), Text(line))
    return table


def _placed(key: str) -> str:
    """Formats `key` as in a run file: [client.privacy] mechanism."""
    section, _, name = key.rpartition(".")
    return f"[{section}] {name}"
