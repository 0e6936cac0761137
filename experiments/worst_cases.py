"""The worst of several attacks in a grid, with its spread over seeds, as a table and as counts.

    python -m experiments.worst_cases experiments/attack_defense/grid.csv --over method \\
        --rows aggregation.before aggregation.rule --columns data.partition attack.fraction

The worst attack of a case has the least mean accuracy over seeds. The table shows that mean and the
sample standard deviation (n - 1) of that attack's accuracy over seeds, both in per cent. Attacks
within a twentieth of a point are tied: the adaptive one may send the same as another. A run that
ended because its training diverged counts with an accuracy of 0.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

_TIE = 0.05
Case = tuple[str, ...]
Accuracies = Mapping[str, Mapping[str, float]]
"""Accuracy in per cent, by attack and by seed."""


@dataclass(frozen=True)
class Worst:
    """The worst attack on a case: its name (or tied ones'), and accuracy in per cent over seeds."""

    attack: str
    mean: float
    std: float
    seeds: int
    ahead: float
    """Distance in points to the next less harmful attack; infinite if there is none."""

    @classmethod
    def of(cls, attacks: Accuracies) -> Worst:
        """The worst of `attacks`.

        >>> Worst.of({"a": {"1": 90.0, "2": 80.0}, "b": {"1": 50.0, "2": 56.0}}).cell()
        '53.0 ± 4.2'
        """
        means = sorted((statistics.fmean(seeds.values()), name) for name, seeds in attacks.items())
        mean, name = means[0]
        seeds = list(attacks[name].values())
        std = statistics.stdev(seeds) if len(seeds) > 1 else 0.0
        tied = [other for harm, other in means if harm - mean < _TIE]
        ahead = means[len(tied)][0] - mean if len(means) > len(tied) else float("inf")
        return cls(" = ".join(sorted(tied)), mean, std, len(seeds), ahead)

    def cell(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}" if self.seeds > 1 else f"{self.mean:.1f}"


def cases(
    path: Path, by: Sequence[str], over: str, where: Mapping[str, str]
) -> dict[Case, dict[str, dict[str, float]]]:
    """Returns accuracies of the finished cells of a grid's table, by the values of the keys `by`.

    Args:
      path: the grid's CSV file.
      by: keys that define a case.
      over: the key of the attacks.
      where: required values of further keys.
    """
    by_case: dict[Case, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            accuracy = _accuracy(row)
            if accuracy is not None and all(row[key] == value for key, value in where.items()):
                case = tuple(row[key] for key in by)
                by_case[case][row[over]][row["seed"]] = 100 * accuracy
    return by_case


def _accuracy(row: Mapping[str, str]) -> float | None:
    """Returns the accuracy of a cell, 0 if its training diverged; None if it has not finished."""
    if row["status"] == "done":
        return float(row["accuracy"])
    return 0.0 if "diverged" in row.get("reason", "") else None


def table(by_case: Mapping[Case, Accuracies], rows: int) -> str:
    """Returns the worst of each case in Markdown; the first `rows` keys of a case name its row."""
    heads = _in_order(case[rows:] for case in by_case)
    lines = [["", *(" ".join(head) for head in heads)], ["---"] * (1 + len(heads))]
    for name in _in_order(case[:rows] for case in by_case):
        cells = [by_case.get((*name, *head)) for head in heads]
        lines.append([" ".join(name), *(Worst.of(cell).cell() if cell else "" for cell in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _in_order(names: Iterable[Case]) -> list[Case]:
    """Returns the names sorted by each key in turn, with values in the order of first
    appearance.
    """
    each = list(dict.fromkeys(names))
    ranks = [list(dict.fromkeys(values)) for values in zip(*each, strict=True)]
    return sorted(
        each, key=lambda name: [rank.index(key) for rank, key in zip(ranks, name, strict=True)]
    )


def tally(by_case: Mapping[Case, Accuracies]) -> str:
    """Returns the number of cases in which each attack is the worst, and worst by over its spread.

    The spread is the standard deviation over seeds. Empty if no case has several attacks.
    """
    worst = [Worst.of(attacks) for attacks in by_case.values() if len(attacks) > 1]
    if not worst:
        return ""
    most, clear = Counter(each.attack for each in worst), Counter[str]()
    clear.update(each.attack for each in worst if each.ahead > each.std)
    lines = [
        f"{len(worst)} cases; the worst attack, and where it is so by more than its deviation:"
    ]
    lines += [f"  {name}: {count} ({clear[name]})" for name, count in most.most_common()]
    return "\n".join(lines)


def attacked(by_case: Mapping[Case, Accuracies], keys: Sequence[str]) -> dict[Case, Accuracies]:
    """Returns the cases by `keys` that have attackers."""
    nobody = {("attack.fraction", "0"), ("attack.fraction", "0.0")}
    return {
        case: attacks
        for case, attacks in by_case.items()
        if nobody.isdisjoint(zip(keys, case, strict=True))
    }


def spread(by_case: Mapping[Case, Accuracies]) -> str:
    """Returns the differences between seeds, in points; empty if no cell has several seeds."""
    each = [list(seeds.values()) for attacks in by_case.values() for seeds in attacks.values()]
    pairs = [abs(a - b) for seeds in each for a, b in combinations(seeds, 2)]
    several = [statistics.stdev(seeds) for seeds in each if len(seeds) > 1]
    if not several:
        return ""
    return (
        f"{sum(pair > 10 for pair in pairs)} of {len(pairs)} pairs of seeds differ by over ten "
        f"points; the deviation over seeds is {statistics.median(several):.1f} points in the "
        f"median and {max(several):.1f} at most ({len(several)} cells)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table", type=Path, help="a grid's CSV")
    parser.add_argument("--over", required=True, help="the key whose worst value is looked for")
    parser.add_argument("--rows", nargs="+", required=True)
    parser.add_argument("--columns", nargs="+", required=True)
    parser.add_argument("--where", nargs="*", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    where = dict(each.split("=", 1) for each in asked.where)
    keys = [*asked.rows, *asked.columns]
    by_case = cases(asked.table, keys, asked.over, where)
    parts = [table(by_case, len(asked.rows)), tally(attacked(by_case, keys)), spread(by_case)]
    print("\n\n".join(part for part in parts if part))


if __name__ == "__main__":
    main()
