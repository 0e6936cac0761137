"""The matrix as people see it: a table for each secure protocol, and the reasons by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from privfed.config.assembly import assembled
from privfed.config.catalog import key_of
from privfed.config.config import Config, Raw
from privfed.plan.matrix import Cell, cells, every, general, numbered

_SHOWN = {"proved": "✓", "no privacy": "·", "void": "void"}
_LEGEND = (
    "✓ proved    · runs without privacy    void: attackers read raw updates, nothing is guaranteed"
    "    a number: refused, and why"
)


def tables(written: Raw) -> tuple[Group, list[dict[str, Any]]]:
    """What goes with what, else as `written`: for the screen, and as JSON. Raises `Refused`."""
    base = assembled(written)
    found = [
        *cells(written, every("protocol", "rule", "mechanism")),
        *cells(written, every("objective", "sampler")),
        *cells(written, every("attack", "protocol")),
    ]
    numbers = numbered(found)
    return Group(*_shown(base, found, numbers)), [one.to_json() for one in found]


def _shown(
    base: Config, found: Sequence[Cell], numbers: Mapping[str, int]
) -> Iterator[RenderableType]:
    for protocol in every("protocol")["protocol"]:
        some = [one for one in found if len(one.choice) == 3 and one.choice["protocol"] == protocol]
        title = f"{key_of('protocol')} = {protocol}"
        yield _table(title, some, "rule", "mechanism", numbers)
    pairs = [one for one in found if len(one.choice) == 2]
    named = base.names
    yield _table(
        f"rule {named['rule']}, protocol {named['protocol']}, mechanism {named['mechanism']}",
        [one for one in pairs if "sampler" in one.choice],
        "objective",
        "sampler",
        numbers,
    )
    yield _table(
        f"rule {named['rule']}, mechanism {named['mechanism']}, sampler {named['sampler']}",
        [one for one in pairs if "attack" in one.choice],
        "attack",
        "protocol",
        numbers,
    )
    yield Text(_LEGEND)
    for reason, number in numbers.items():
        yield Text(f"{number:>3}  {reason}")


def _table(
    title: str, found: Sequence[Cell], down: str, across: str, numbers: Mapping[str, int]
) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(key_of(down))
    columns = list(dict.fromkeys(one.choice[across] for one in found))
    for name in columns:
        table.add_column(name, justify="center")
    for name in dict.fromkeys(one.choice[down] for one in found):
        here = {one.choice[across]: one for one in found if one.choice[down] == name}
        table.add_row(name, *(_mark(here[column], numbers) for column in columns))
    return table


def _mark(one: Cell, numbers: Mapping[str, int]) -> str:
    return _SHOWN[one.said] if one.event is not None else str(numbers[general(one)])
