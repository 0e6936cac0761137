"""The matrix of combinations, as `privfed check --matrix` derives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pages.markdown import code, join, prose, table, within
from privfed.config.catalog import key_of
from privfed.core.registry import BUILT_IN
from privfed.plan.assumptions import ASSUMPTIONS
from privfed.plan.matrix import (
    Combination,
    built_in,
    combinations,
    general_reason,
    numbered_reasons,
)
from privfed.report.matrix import MARKS

SITES = {"data": {"sites": 5}}
SEVERAL = {"data": {"sites": 5, "sites_per_client": 2}}
SHARED = {"mechanism": "discrete_gaussian"}
ONE_NOISE = {**SITES, "secure": {"protocol": "masks"}, "privacy": SHARED}


def matrix() -> str:
    """Rules by mechanisms for each protocol, objectives, attacks, compressions; then with sites."""
    by_protocol = list(combinations({}, built_in("protocol", "rule", "mechanism")))
    by_objective = list(combinations({}, built_in("objective", "sampler")))
    by_attack = list(combinations({}, built_in("attack", "protocol")))
    by_bytes = list(combinations({}, built_in("compression", "mechanism")))
    summed = list(combinations({}, built_in("compression", "protocol")))
    noises = list(combinations(SITES, built_in("mechanism", "protocol")))
    several = list(combinations(SEVERAL, built_in("mechanism", "protocol")))
    trained = list(combinations(ONE_NOISE, built_in("objective", "sampler")))
    rules = list(combinations(ONE_NOISE, built_in("rule", "mechanism")))
    first = [*by_protocol, *by_objective, *by_attack, *by_bytes, *summed]
    all_of_them = [*first, *noises, *several, *trained, *rules]
    numbers = numbered_reasons(all_of_them)
    blocks = []
    for protocol in BUILT_IN["protocol"]:
        chosen = [each for each in by_protocol if each.choice["protocol"] == protocol]
        blocks += [f"## Rules and mechanisms under secure.protocol = {protocol}"]
        blocks += [_table(chosen, "rule", "mechanism", numbers)]
    blocks += ["## Objectives and samplers", _table(by_objective, "objective", "sampler", numbers)]
    blocks += ["## Attacks and protocols", _table(by_attack, "attack", "protocol", numbers)]
    blocks += ["## Compressions and mechanisms"]
    blocks += [_table(by_bytes, "compression", "mechanism", numbers)]
    blocks += ["## Compressions and protocols"]
    blocks += [_table(summed, "compression", "protocol", numbers)]
    blocks += [
        "## Mechanisms and protocols at five sites",
        _table(noises, "mechanism", "protocol", numbers),
    ]
    blocks += ["## Mechanisms and protocols, clients at up to two of five sites"]
    blocks += [_table(several, "mechanism", "protocol", numbers)]
    blocks += ["## Rules and mechanisms, masked sums of five sites"]
    blocks += [_table(rules, "rule", "mechanism", numbers)]
    blocks += ["## Objectives and samplers, one noise of five sites"]
    blocks += [_table(trained, "objective", "sampler", numbers)]
    blocks += ["## Reasons of refusals"]
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
    return within("marks", table([code(key_of(down)), *map(code, columns)], rows))


def _mark(combined: Combination, numbers: Mapping[str, int]) -> str:
    if combined.event is None:
        return str(numbers[general_reason(combined)])
    return MARKS[combined.verdict]


def assumptions() -> str:
    """Every assumption of a stated epsilon, its keys, and how runs that differ in it compose."""
    rows = [[each.name, prose(each.keys), prose(each.differing)] for each in ASSUMPTIONS]
    return table(["assumption", "keys", "two runs that differ"], rows)
