"""What people see of the parts that there are."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from privfed.config.catalog import key_of


def catalog_table(found: Mapping[str, Mapping[str, str]]) -> Table:
    """Every part under the key that names it."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for kind, parts in found.items():
        table.add_row(Text(_placed(key_of(kind)), style="bold"), "")
        for name, line in parts.items():
            table.add_row(Text(f"  {name}", style="cyan"), Text(line))
    return table


def _placed(key: str) -> str:
    """As it stands in a file: [client.privacy] mechanism."""
    section, _, name = key.rpartition(".")
    return f"[{section}] {name}"
