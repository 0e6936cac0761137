"""What goes with what, as `privfed check --matrix` derives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pages.markdown import code, join, prose, table
from privfed.config.catalog import key_of
from privfed.plan.matrix import (
    Combination,
    built_in,
    combinations,
    general_reason,
    numbered_reasons,
)
from privfed.registry import BUILT_IN

MARKS = {"proved": "✓", "no privacy": "·", "void": "void"}


def matrix() -> str:
    """Rules by mechanisms for each protocol, objectives by samplers, attacks by protocols."""
    by_protocol = list(combinations({}, built_in("protocol", "rule", "mechanism")))
    by_objective = list(combinations({}, built_in("objective", "sampler")))
    by_attack = list(combinations({}, built_in("attack", "protocol")))
    numbers = numbered_reasons([*by_protocol, *by_objective, *by_attack])
    blocks = []
    for protocol in BUILT_IN["protocol"]:
        chosen = [each for each in by_protocol if each.choice["protocol"] == protocol]
        blocks += [f"## Rules and mechanisms, secure.protocol = {protocol}"]
        blocks += [_table(chosen, "rule", "mechanism", numbers)]
    blocks += ["## Objectives and samplers", _table(by_objective, "objective", "sampler", numbers)]
    blocks += ["## Attacks and protocols", _table(by_attack, "attack", "protocol", numbers)]
    blocks += ["## Why combinations are refused"]
    blocks += ["\n".join(f"{number}. {prose(why)}." for why, number in numbers.items())]
    return join(blocks)


def _table(
    matrix: Sequence[Combination], down: str, across: str, numbers: Mapping[str, int]
) -> str:
    marks = {
        (combined.choice[down], combined.choice[across]): _mark(combined, numbers)
        for combined in matrix
    }
    columns = list(dict.fromkeys(column for _, column in marks))
    rows = [
        [code(row), *(marks[row, column] for column in columns)]
        for row in dict.fromkeys(row for row, _ in marks)
    ]
    return table([code(key_of(down)), *map(code, columns)], rows)


def _mark(combined: Combination, numbers: Mapping[str, int]) -> str:
    if combined.event is None:
        return str(numbers[general_reason(combined)])
    return MARKS[combined.verdict]
