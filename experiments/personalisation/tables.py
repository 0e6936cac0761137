"""The tables of the study's page, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import numpy as np

from experiments.federated_evaluation.tables import interval
from experiments.personalisation.cases import ARMS, EPSILONS, FINE_TUNED, SETTINGS, SINGLE_PROCESS
from experiments.personalisation.records import Record

MEASURES = {"mean": "mean", "worst_decile": "worst decile"}
_BASES = {SINGLE_PROCESS: ARMS[1:], FINE_TUNED: ARMS[3:]}
"""Arms whose differences from a base arm are shown, by base arm."""


def tables(tuning: Sequence[Record], results: Sequence[Record]) -> str:
    """Returns all tables by setting, separated by blank lines."""
    parts = []
    for setting in SETTINGS:
        of = [record for record in results if record.setting == setting]
        if of:
            parts += [levels(of), *(differences(of, base) for base in _BASES)]
    return "\n\n".join([*parts, chosen(tuning, results)])


def values(results: Sequence[Record], arm: str, epsilon: float, measure: str) -> dict[int, float]:
    """Returns a measure in per cent by seed; training alone does not depend on epsilon."""
    wanted = (arm, inf if arm == SINGLE_PROCESS else epsilon)
    return {
        record.seed: 100 * getattr(record, measure)
        for record in results
        if (record.arm, record.epsilon) == wanted
    }


def levels(results: Sequence[Record]) -> str:
    """Returns mean and worst decile over clients, means of seeds."""
    return _markdown(
        _head(results[0].setting),
        (
            (arm, *(f"{np.mean(list(cell.values())):.1f}" for cell in _row(results, arm)))
            for arm in ARMS
        ),
    )


def differences(results: Sequence[Record], base: str) -> str:
    """Returns differences of arms from a base: means over seeds, and half of their 95 %
    interval.
    """
    return _markdown(
        _head(f"{results[0].setting}, less *{base}*"),
        ((arm, *map(_apart, _row(results, arm), _row(results, base))) for arm in _BASES[base]),
    )


def _apart(cell: dict[int, float], base: dict[int, float]) -> str:
    return interval([cell[seed] - base[seed] for seed in cell])


def _row(results: Sequence[Record], arm: str) -> list[dict[int, float]]:
    return [values(results, arm, eps, measure) for measure in MEASURES for eps in EPSILONS]


def _head(first: str) -> list[str]:
    return [
        first,
        *(f"{name}, ε = {_named(eps)}" for name in MEASURES.values() for eps in EPSILONS),
    ]


def chosen(tuning: Sequence[Record], results: Sequence[Record]) -> str:
    """Returns the settings chosen for each arm among those tried for it."""
    settings = list(dict.fromkeys(record.setting for record in results))
    rows = []
    for arm in ARMS:
        for epsilon in (inf,) if arm == SINGLE_PROCESS else EPSILONS:
            cells = [_choice(tuning, results, setting, arm, epsilon) for setting in settings]
            rows.append([arm, _named(epsilon), *cells])
    return _markdown(["", "ε", *settings], rows)


def _choice(
    tuning: Sequence[Record], results: Sequence[Record], setting: str, arm: str, epsilon: float
) -> str:
    key = (setting, arm, epsilon)
    record = next(record for record in results if record.key[:3] == key)
    tried = [each.changes for each in tuning if each.key[:3] == key]
    words = []
    for place, change in enumerate(record.changes):
        name, _, value = change.partition("=")
        if len({each[place] for each in tried}) > 1:
            words.append(f"{name.split('.')[1]} {value}")
    return ", ".join([*words, *([record.adaptation] if record.adaptation else [])])


def _named(epsilon: float) -> str:
    return "∞" if epsilon == inf else f"{epsilon:g}"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
