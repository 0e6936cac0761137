"""The tables of the study's page, each cell next to the published figure.

Printed by `python -m experiments.robust_tables.page`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

HERE = Path(__file__).parent
BUCKETS = "bucketing"
RULES = ("mean", "Krum", "median", "RFA", "centered clipping")
ATTACKS = ("bit flip", "label flip", "mimic", "IPM", "ALIE")
Column = Literal["accuracy", "accuracy_last_100"]
"""The measure of a run: its last evaluation, or the mean of those in its last 100 rounds."""
Row = Mapping[str, str]
Place = tuple[str, str, str]
"""A method, the fraction of data assigned at random, and the step before the rule."""


def main() -> None:
    for table in tables():
        print(table, end="\n\n")


def tables() -> list[str]:
    """Returns all tables, as Markdown, from the files in this folder."""
    return [balanced("imbalance"), balanced("mimic"), attacked(), example()]


def balanced(grid: str) -> str:
    """Returns a rule's accuracy on IID and on sorted data, without and with buckets."""
    ours, theirs = measured(_read(f"{grid}.csv"), "accuracy_last_100"), published(grid)
    places = [(share, before) for share in ("1.0", "0.0") for before in ("", BUCKETS)]
    heads = [f"{_share_label(share)}{_after(before)}" for share, before in places]
    lines = []
    for rule in RULES:
        cells = [_cell(ours, theirs, (rule, *place)) for place in places]
        lines.append([rule, *cells])
    return _markdown(["", *heads], lines)


def attacked() -> str:
    """Returns accuracy under each attack on sorted data, without and with momentum and buckets."""
    ours, theirs = measured(_read("attacks.csv"), "accuracy"), published("attacks")
    lines = []
    for rule in RULES[1:]:
        for momentum in ("", ", momentum"):
            for before in ("", BUCKETS):
                places = [(f"{rule}{momentum}: {attack}", "0.0", before) for attack in ATTACKS]
                head = f"{rule}{momentum}{_after(before)}"
                lines.append([head, *(_cell(ours, theirs, place) for place in places)])
    return _markdown(["", *ATTACKS], lines)


def example() -> str:
    """Returns accuracy over the steps of ByzFL's example."""
    ours, itself = (by_step(_read(f"{name}.csv")) for name in ("byzfl.rounds", "byzfl_itself"))
    theirs, steps = published("byzfl"), sorted(ours)
    lines = [
        ["privfed", *(_spread(ours[step]) for step in steps)],
        ["ByzFL, the same images", *(_spread(itself[step]) for step in steps)],
        [
            "published, all of MNIST",
            *(f"{theirs[f'step {step}', '', ''][0]:.1f}" for step in steps),
        ],
    ]
    return _markdown(["step", *map(str, steps)], lines)


def by_step(rows: Sequence[Row]) -> dict[int, list[float]]:
    """Returns each seed's accuracy in per cent, by the round after which it was scored."""
    accuracies: dict[int, list[float]] = {}
    for row in rows:
        accuracies.setdefault(int(row["round"]), []).append(100 * float(row["accuracy"]))
    return accuracies


def measured(rows: Sequence[Row], column: Column) -> dict[Place, list[float]]:
    """Returns each seed's accuracy in per cent, as in `column`, by place."""
    accuracies: dict[Place, list[float]] = {}
    for row in rows:
        before = BUCKETS if BUCKETS in row["aggregation.before"] else ""
        place = (row["method"], f"{float(row['data.similarity']):.1f}", before)
        accuracies.setdefault(place, []).append(100 * float(row[column]))
    return accuracies


def published(grid: str) -> dict[Place, tuple[float, str]]:
    """Returns the published accuracy in per cent, and its standard deviation over seeds if
    stated.
    """
    return {
        (row["method"], row["data.similarity"], row["before"]): (
            float(row["accuracy"]),
            row["deviation"],
        )
        for row in _read("published.csv")
        if row["grid"] == grid
    }


def _cell(
    ours: Mapping[Place, list[float]], theirs: Mapping[Place, tuple[float, str]], place: Place
) -> str:
    """Returns the measured figure, and in brackets the published one."""
    if place not in ours:
        return ""
    measured_here = _spread(ours[place])
    if place not in theirs:
        return measured_here
    accuracy, std = theirs[place]
    beside = f"{accuracy:.1f} ± {float(std):.1f}" if std else f"{accuracy:.1f}"
    return f"{measured_here} [{beside}]"


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{fmean(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def _share_label(share: str) -> str:
    return "IID" if float(share) == 1 else "sorted"


def _after(before: str) -> str:
    return " after bucketing" if before else ""


def _markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _read(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
