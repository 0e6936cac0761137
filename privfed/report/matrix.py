"""The tables of combinations of parts, and the numbered reasons why some are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from privfed.config.assembly import assembled
from privfed.config.catalog import key_of
from privfed.config.config import Raw
from privfed.plan.matrix import (
    Combination,
    built_in,
    combinations,
    general_reason,
    numbered_reasons,
)

MARKS = {"proved": "proof", "no privacy": "none", "void": "void"}
"""The word in a table for each verdict of a combination that is not refused."""
_LEGEND = (
    "proof: has a proven guarantee    none: runs without privacy    void: attackers read raw "
    "updates, so there is no guarantee    a number: refused for the reason with this number"
)


def matrix_tables(written: Raw) -> tuple[Group, list[dict[str, Any]]]:
    """Returns the verdict on each combination of built-in parts, as tables and as JSON objects.

    Args:
      written: the content of a run file, from which all keys other than the combined parts are
        taken.

    Returns:
      The tables, and one JSON object for each combination.

    Raises:
      Refused: if the run file itself is invalid.
    """
    names = assembled(written).names
    by_protocol = list(combinations(written, built_in("protocol", "rule", "mechanism")))
    by_objective = list(combinations(written, built_in("objective", "sampler")))
    by_attack = list(combinations(written, built_in("attack", "protocol")))
    by_bytes = list(combinations(written, built_in("compression", "mechanism")))
    matrix = [*by_protocol, *by_objective, *by_attack, *by_bytes]
    numbers = numbered_reasons(matrix)
    rule, mechanism = f"rule {names['rule']}", f"mechanism {names['mechanism']}"
    group = Group(
        *_protocol_tables(by_protocol, numbers),
        _table(
            f"{rule}, protocol {names['protocol']}, {mechanism}",
            *(by_objective, "objective", "sampler", numbers),
        ),
        _table(
            f"{rule}, {mechanism}, sampler {names['sampler']}",
            *(by_attack, "attack", "protocol", numbers),
        ),
        _table(
            f"{rule}, protocol {names['protocol']}, sampler {names['sampler']}",
            *(by_bytes, "compression", "mechanism", numbers),
        ),
        Text(_LEGEND),
        *(Text(f"{number:>3}  {reason}") for reason, number in numbers.items()),
    )
    return group, [combined.to_json() for combined in matrix]


def _protocol_tables(
    matrix: Sequence[Combination], numbers: Mapping[str, int]
) -> Iterator[RenderableType]:
    """Yields, for each protocol, a `_table` with aggregation rules in rows, mechanisms across."""
    for protocol in built_in("protocol")["protocol"]:
        chosen = [combined for combined in matrix if combined.choice["protocol"] == protocol]
        yield _table(f"{key_of('protocol')} = {protocol}", chosen, "rule", "mechanism", numbers)


def _table(
    title: str, matrix: Sequence[Combination], down: str, across: str, numbers: Mapping[str, int]
) -> Table:
    """Returns a table of `_mark`s; its rows are parts of kind `down`, its columns of `across`."""
    table = Table(title=title, title_justify="left")
    table.add_column(key_of(down))
    marks = {
        (combined.choice[down], combined.choice[across]): _mark(combined, numbers)
        for combined in matrix
    }
    columns = list(dict.fromkeys(column for _, column in marks))
    for column in columns:
        table.add_column(column, justify="center")
    for row in dict.fromkeys(row for row, _ in marks):
        table.add_row(row, *(marks[row, column] for column in columns))
    return table


def _mark(combined: Combination, numbers: Mapping[str, int]) -> str:
    """Returns the word of `MARKS` for a combination that can run, or the number of its refusal.

    `numbers` has the number of each `general_reason` of a refusal.
    """
    if combined.event is None:
        return str(numbers[general_reason(combined)])
    return MARKS[combined.verdict]
