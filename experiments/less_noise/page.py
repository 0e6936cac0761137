"""The tables of the study's page as Markdown, from its CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.federated_evaluation.tables import interval
from experiments.less_noise.noise_table import (
    ALLOCATION,
    BUFFERED,
    IN_BANDS,
    OPTIMISED,
    POISSON,
    ROOT,
)

Row = dict[str, str]
_EPSILON = "privacy.epsilon"
_PAIRS = (
    ("cyclic, optimised bands", "cyclic, square root bands"),
    ("cyclic, BLT", "cyclic, optimised bands"),
    ("allocation", "Poisson"),
    ("allocation, bands", "allocation"),
    ("allocation, bands", "cyclic, optimised bands"),
)
"""Methods whose accuracies are compared, the first minus the second."""


def accuracies(summary: Sequence[Row]) -> str:
    """Returns mean accuracy over seeds, in per cent, with minimum and maximum, by epsilon."""
    cells = {(row["method"], row[_EPSILON]): _spread(row) for row in summary}
    methods, epsilons = _each(summary, "method"), _each(summary, _EPSILON)
    lines = ([method, *(cells[method, epsilon] for epsilon in epsilons)] for method in methods)
    return _markdown(["", *_headed(epsilons)], lines)


def _spread(row: Row) -> str:
    mean, low, high = (100 * float(row[f"accuracy_{of}"]) for of in ("mean", "min", "max"))
    return f"{mean:.1f} ({low:.1f}–{high:.1f})"


def differences(runs: Sequence[Row]) -> str:
    """Returns paired differences of accuracy in points: the mean and half of its 95 % interval."""
    reached = {(row["method"], row[_EPSILON], row["seed"]): float(row["accuracy"]) for row in runs}
    epsilons, seeds = _each(runs, _EPSILON), _each(runs, "seed")

    def apart(first: str, second: str, epsilon: str) -> str:
        gains = [
            100 * (reached[first, epsilon, seed] - reached[second, epsilon, seed]) for seed in seeds
        ]
        return interval(gains)

    lines = (
        [f"{first}, less {second}", *(apart(first, second, epsilon) for epsilon in epsilons)]
        for first, second in _PAIRS
    )
    return _markdown(["", *_headed(epsilons)], lines)


def noises(rows: Sequence[Row]) -> str:
    """Returns relative noise, a line for each number of rounds and separation of participations."""
    cells = {
        (row["rounds"], row["apart"], row["epsilon"], row["method"]): _relative(row) for row in rows
    }
    epsilons = _each(rows, "epsilon")
    places = list(dict.fromkeys((row["rounds"], row["apart"]) for row in rows))
    fixed, secret = (ROOT, OPTIMISED, BUFFERED), (ALLOCATION, IN_BANDS, POISSON)
    head = ["rounds", "once in", *fixed]
    head += [f"{method}, ε = {epsilon}" for epsilon in epsilons for method in secret]
    lines = (
        [
            *place,
            *(cells[*place, epsilons[0], method] for method in fixed),
            *(cells[*place, epsilon, method] for epsilon in epsilons for method in secret),
        ]
        for place in places
    )
    return _markdown(head, lines)


def noises_by_epsilon(rows: Sequence[Row]) -> str:
    """Returns relative noise in one setting, a line for each method."""
    cells = {(row["method"], row["epsilon"]): _relative(row) for row in rows}
    epsilons = _each(rows, "epsilon")
    lines = (
        [method, *(cells[method, epsilon] for epsilon in epsilons)]
        for method in _each(rows, "method")
    )
    return _markdown(["", *_headed(epsilons)], lines)


def _relative(row: Row) -> str:
    bands = f" ({row['bands']})" if row["method"] == IN_BANDS else ""
    return f"{float(row['relative']):.3f}{bands}"


def times(rows: Sequence[Row]) -> str:
    """Returns milliseconds, and their ratio to those of Poisson sampling."""
    cells = {
        (row["rounds"], row["apart"], row["method"], row["work"]): (
            f"{_short(1000 * float(row['seconds']))} ({_short(float(row['over_poisson']))})"
        )
        for row in rows
    }
    works = _each(rows, "work")
    places = list(dict.fromkeys((row["rounds"], row["apart"], row["method"]) for row in rows))
    lines = ([*place, *(cells[*place, work] for work in works)] for place in places)
    return _markdown(["rounds", "once in", "", *(f"{work}, ms" for work in works)], lines)


def _short(value: float) -> str:
    """Formats with two digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _each(rows: Iterable[Row], key: str) -> list[str]:
    """Returns the distinct values of a column, in order of appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def _headed(epsilons: Sequence[str]) -> list[str]:
    return [f"ε = {epsilons[0]}", *epsilons[1:]]


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
